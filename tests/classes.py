"""An archive of the classes of Spark's JVMs, made once for the many sessions of the tests, most of which live for seconds.

A JVM that maps its classes in, rather than to read, check and link each, takes 6 s of CPU to start Spark instead of 11, and a
job of the crash tests takes 21 s instead of 33.

To make it takes 30 s, so only runs with several workers do, beside their first tests; it stays in pytest's cache, and serves
until there is another Java or Spark. A JVM that cannot use it, as one with other jars, starts without.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for seconds: a start of Spark takes 13 s of CPU instead of 24."""

OPTIONS, FOLDER = "JDK_JAVA_OPTIONS", "SPRINGTIDE_TEST_CLASSES"
"""The environment variables: what every JVM is told, and where the archive is or will be."""

BASE, TOP = "java.jsa", "spark.jsa"
"""Java's own classes, of which not every Java brings an archive, and on top of it those of Spark."""


@dataclass(frozen=True)
class Making:
    """An archive that is being made by a process of its own."""

    process: subprocess.Popen[bytes]
    draft: Path
    folder: Path

    def end(self) -> None:
        """Leave nothing behind of one that is not there yet: the tests were few."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.folder.resolve().parent != self.draft.resolve():
            shutil.rmtree(self.draft, ignore_errors=True)


def begin(shelf: Path) -> Making | None:
    """Begin to make the archive, unless it is there, or Java or Spark are not; and tell all processes where it will be."""
    folder = _folder(shelf)
    if folder is None:
        return None
    os.environ[FOLDER] = str(folder)
    if folder.exists():
        return None
    draft = Path(tempfile.mkdtemp(dir=shelf))
    process = subprocess.Popen(
        [sys.executable, __file__, draft, folder], env={**os.environ, OPTIONS: BRIEF}, cwd=draft, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return Making(process, draft, folder)


def use() -> None:
    """Have JVMs start with the archive once it is there; with a file that is missing they would not even have Java's own.

    One that cannot use it says so, and not on stdout, which belongs to the program.
    """
    folder, given_options = os.environ.get(FOLDER), os.environ[OPTIONS]
    if folder is not None and TOP not in given_options and Path(folder).exists():
        made = Path(folder).resolve()  # newer Javas want the upper archive's base where it was made
        archives = f'"-XX:SharedArchiveFile={made / BASE}:{made / TOP}"'
        os.environ[OPTIONS] = f"{given_options} -Xlog:disable -Xlog:all=warning:stderr {archives}"


def _folder(shelf: Path) -> Path | None:
    """Named after the Java and the jars: with others it would be refused."""
    try:
        import pyspark
    except ImportError:
        return None
    from springtide.errors import SetupError
    from springtide.spark.driver.java import find_java

    try:
        home = find_java().home
    except SetupError:
        return None
    depends = (home / "lib" / "server" / "libjvm.so", Path(pyspark.__file__).parent / "jars")
    if not all(path.exists() for path in depends):
        return None
    names = [f"{path.resolve()} {path.stat().st_mtime_ns}" for path in depends]
    return shelf / hashlib.sha256(" ".join([*names, BRIEF]).encode()).hexdigest()[:12]


def make(draft: Path, folder: Path) -> None:
    made = draft / "made"
    made.mkdir()
    archive_classes(draft / "job", made)
    shutil.rmtree(draft / "job")
    if (made / TOP).exists():
        link = draft / "link"
        link.symlink_to(made.resolve())
        link.replace(folder)  # at once, so that what is there is whole; also in place of a link that leads nowhere


def archive_classes(job: Path, made: Path) -> None:
    """Run a job that has something of everything, in a JVM that writes down its classes when it ends."""
    from pyspark import SparkContext

    import springtide as st
    from crash.job import Settings, build
    from springtide.spark.driver.java import find_java

    base, top = made / BASE, made / TOP
    subprocess.run(
        [find_java().home / "bin" / "java", "-Xshare:dump", f"-XX:SharedArchiveFile={base}"], check=True, capture_output=True
    )
    settings = Settings(str(job), records=160)
    options = f"-XX:SharedArchiveFile={base} -XX:ArchiveClassesAtExit={top}"
    st.run(
        build(settings), max_slots=2, checkpoint=settings.checkpoint, runs=settings.runs, master="local[2]", executors="fixed",
        conf={"spark.driver.extraJavaOptions": options},
    )  # fmt: skip
    gateway = SparkContext._gateway
    gateway.proc.stdin.close()  # which ends it
    gateway.proc.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
