"""The documents of ``springtide.durable``, under the name that this package uses."""

from springtide.durable import ANY as ANY
from springtide.durable import CHECKSUM as CHECKSUM
from springtide.durable import PRIVATE as PRIVATE
from springtide.durable import Document as Document
from springtide.durable import Shape as Shape
from springtide.durable import encoded as encoded
from springtide.durable import make_folder as make_folder
from springtide.durable import read_document as read_document
from springtide.durable import read_json as read_json
from springtide.durable import sync_folder as sync_folder
from springtide.durable import write_atomic as write_atomic
from springtide.durable import write_whole as write_whole
