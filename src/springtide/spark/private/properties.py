"""Settings for a JVM that is about to start, in a file that only this user can read.

PySpark would hand them to spark-submit as ``--conf name=value``. Arguments are in the list of processes, which every user of
the machine can read, for as long as the JVM lives; and settings may have passwords, as those of an object store have.

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
"""Where PySpark looks for spark-submit's arguments."""
SHELL = "pyspark-shell"
"""What spark-submit runs without any: a JVM that waits for Python."""
FILE = "--properties-file"
SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of settings whose values nobody else may see: Spark's own pattern, ``spark.redaction.regex``."""


def secrets(names: Iterable[str]) -> list[str]:
    """Those that have a secret for their value.

    >>> secrets(["spark.executor.cores", "spark.hadoop.fs.s3a.secret.key"])
    ['spark.hadoop.fs.s3a.secret.key']
    """
    return [name for name in names if SECRET.search(name)]


def is_on(value: object) -> bool:
    """Whether Spark takes a setting's value for true: in upper or lower case.

    >>> is_on("True"), is_on("false"), is_on(None)
    (True, False, False)
    """
    return str(value).strip().lower() == "true"


@contextlib.contextmanager
def in_file(settings: Mapping[str, str]) -> Iterator[None]:
    """While this lasts, a JVM that PySpark starts reads the settings from a file, which is then removed.

    They go above those of ``spark-defaults.conf``, or of the file that the user has named in ``PYSPARK_SUBMIT_ARGS`` instead.
    spark-submit reads one file only, so the user's is copied into ours, in front: of two lines for a name Java takes the later.
    """
    before = os.environ.get(ARGUMENTS)
    rest, named = _without_file(shlex.split(before or SHELL))
    with tempfile.NamedTemporaryFile("w", prefix="springtide-", suffix=".conf", encoding="utf-8") as file:  # mode 0600
        file.write("" if named is None else _content(named))
        file.writelines(f"{escaped(name)}={escaped(str(value))}\n" for name, value in settings.items())  # numbers come too
        file.flush()
        defaults = [] if named is not None else ["--load-spark-defaults"]  # in whose place a file of the user's is read
        os.environ[ARGUMENTS] = shlex.join([FILE, file.name, *defaults, *rest])
        try:
            yield
        finally:
            if before is None:
                del os.environ[ARGUMENTS]
            else:
                os.environ[ARGUMENTS] = before


def _without_file(arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments but for the file of properties, and which one that is: the last, as for spark-submit."""
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
    """As ``java.util.Properties`` reads it, in a name or a value.

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
