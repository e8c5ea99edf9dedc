"""Passes settings to a new JVM in a file that only this user can read.

PySpark would pass them to spark-submit as ``--conf name=value``. Every user of the machine can read arguments in the list of
processes while the JVM lives, and settings may contain passwords, for example of an object store.

Seen to work on: Spark 4.2 and 4.3, which read ``PYSPARK_SUBMIT_ARGS``.
Without it: the JVM starts without the settings of the run, and the session has Spark's defaults.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from springtide.errors import SetupError

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""The environment variable with PySpark's arguments for spark-submit."""
SHELL = "pyspark-shell"
"""The default arguments: a JVM that waits for Python."""
FILE = "--properties-file"
SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""Matches the names of settings with secret values: Spark's own pattern, ``spark.redaction.regex``."""


def secrets(names: Iterable[str]) -> list[str]:
    """The names of settings with secret values.

    >>> secrets(["spark.executor.cores", "spark.hadoop.fs.s3a.secret.key"])
    ['spark.hadoop.fs.s3a.secret.key']
    """
    return [name for name in names if SECRET.search(name)]


def is_on(value: object) -> bool:
    """Whether Spark reads a setting's value as true. Case does not matter.

    >>> is_on("True"), is_on("false"), is_on(None)
    (True, False, False)
    """
    return str(value).strip().lower() == "true"


@contextlib.contextmanager
def in_file(settings: Mapping[str, str]) -> Iterator[None]:
    """A JVM that PySpark starts in this context reads the settings from a file, which is then removed.

    They override ``spark-defaults.conf``, or the file that ``PYSPARK_SUBMIT_ARGS`` names instead. spark-submit reads only one
    file, so ours begins with a copy of the user's: Java takes the last line for a name.
    """
    before = os.environ.get(ARGUMENTS)
    rest, named = _without_file(shlex.split(before or SHELL))
    with tempfile.NamedTemporaryFile("w", prefix="springtide-", suffix=".conf", encoding="utf-8") as file:  # mode 0600
        file.write("" if named is None else _content(named))
        file.writelines(f"{escaped(name)}={escaped(str(value))}\n" for name, value in settings.items())  # numbers come too
        file.flush()
        defaults = [] if named is not None else ["--load-spark-defaults"]  # a user's file replaces the defaults
        os.environ[ARGUMENTS] = shlex.join([FILE, file.name, *defaults, *rest])
        try:
            yield
        finally:
            if before is None:
                del os.environ[ARGUMENTS]
            else:
                os.environ[ARGUMENTS] = before


def _without_file(arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments without the properties file, and that file; the last one counts, as for spark-submit."""
    rest, named = [], None
    words = iter(arguments)
    for word in words:
        if word == FILE:
            named = next(words, None)
        elif word.startswith(f"{FILE}="):
            named = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, named


def _content(named: str) -> str:
    try:
        return Path(named).read_text(encoding="utf-8") + "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"{ARGUMENTS} has {FILE} {named}, which cannot be read ({error}); mend it or unset {ARGUMENTS}"
        ) from None


def escaped(text: str) -> str:
    """A name or a value in the format of ``java.util.Properties``.

    >>> escaped("a=b"), escaped("C:\\\\x y"), escaped("ü\\n")
    ('a\\\\=b', 'C\\\\:\\\\\\\\x\\\\ y', '\\\\u00fc\\\\u000a')
    """
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character in "\\ =:#!":
        return f"\\{character}"
    if " " < character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))
