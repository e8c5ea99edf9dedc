"""``springtide submit``: spark-submit that attaches a policy to every query of the application."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from springtide.cli.common import errors, warn_of_secrets
from springtide.errors import OptionError, SetupError
from springtide.spark.driver.session import GRACEFUL

SETTINGS = {
    "--policy": "policy",
    "--target": "target",
    "--min-executors": "min-executors",
    "--max-executors": "max-executors",
    "--interval": "interval",
}
"""Springtide's options with a value, and their settings after ``spark.springtide.``."""
SWITCHES = ("--supervise", "--verbose", "-v", "--version", "--help", "-h", "--usage-error")
"""The options of spark-submit that have no value; all others have one."""
DEFAULT_CONF = {**GRACEFUL, "spark.storage.decommission.rddBlocks.enabled": "true"}
"""Settings that the user's own override. Without them, the blocks of a released executor are computed again."""


@dataclass(frozen=True)
class Submission:
    """A parsed command line: Springtide's settings, the options of spark-submit, the application with its arguments."""

    settings: Mapping[str, str]
    spark: tuple[str, ...]
    app: tuple[str, ...]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SPARK-SUBMIT OPTIONS] APP.py [ARGS]")
def submit(arguments: tuple[str, ...]) -> None:
    """Run an unchanged application with spark-submit, and scale the executors under each of its streaming queries.

    \b
    --policy NAME        scaling policy (tide); see `springtide policies`
    --set NAME=VALUE     a parameter of the policy; repeatable
    --guard NAME:P=V,…   a guard between policy and executors; repeatable
    --target LATENCY     latency target such as 2s, or trigger: batches within the trigger interval
    --min-executors N    minimum number of executors (1)
    --max-executors N    maximum number of executors (the number that the application starts with)
    --interval TIME      time between two decisions (1s)
    --dry-run            log what would be done, and do nothing

    All other options are spark-submit's. The exit code is the application's.
    """
    with errors():
        parsed = parse(arguments)
        home = spark_home(os.environ)
        preset = defaults(parsed.spark, home, os.environ)
        check(parsed, preset)
        warn_of_secrets(given(parsed.spark))
        from springtide.spark.driver import java

        java.use(java.find_java())
        line = command(parsed, home, preset)
        environ = {**os.environ, "SPARK_HOME": str(home)}
        environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)  # where Springtide is installed
    os.execve(line[0], line, environ)  # noqa: S606  spark-submit takes this process: its signals and its exit code are ours


def parse(arguments: Sequence[str]) -> Submission:
    """Extract Springtide's options, which may stand anywhere before the application.

    >>> parse(["--target", "2s", "--master", "yarn", "app.py", "--target", "its own"])
    Submission(settings={'target': '2s'}, spark=('--master', 'yarn'), app=('app.py', '--target', 'its own'))
    """
    settings: dict[str, str] = {}
    spark: list[str] = []
    guards: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--dry-run":
            settings["dry-run"] = value or "true"
            continue
        if option in SWITCHES:
            spark.append(option)
            continue
        if not equals:
            if not rest:
                raise OptionError(f"{option} needs a value, and the line ends there; see `springtide submit --help`")
            value = rest.pop(0)
        if option in SETTINGS:
            settings[SETTINGS[option]] = value
        elif option == "--set":
            name, given, text = value.partition("=")
            if not given or not name:
                raise OptionError(f"--set {value!r}: write name=value")
            settings[f"policy.{name}"] = text
        elif option == "--guard":
            guards.append(value)
        else:
            spark += [option, value]
    if guards:
        settings["guards"] = "; ".join(guards)
    if not rest:
        raise OptionError("no application is named; write springtide submit [options] app.py [arguments]")
    return Submission(settings, tuple(spark), tuple(rest))


def check(parsed: Submission, defaults: Mapping[str, str]) -> None:
    """Refuse, before Spark starts, options that cannot work. ``defaults``: as for ``command``."""
    app = parsed.app[0]
    if not app.endswith(".py"):
        raise OptionError(f"{app!r} is not a Python file; `springtide submit` runs Python applications")
    if not os.path.exists(app):
        raise OptionError(f"there is no file {app!r}")
    from springtide.options import scaler
    from springtide.spark.attach import options
    from springtide.spark.private.properties import is_on

    conf_given = {**defaults, **given(parsed.spark)}
    if conf_given.get("spark.submit.deployMode") == "cluster":
        raise OptionError(
            "with --deploy-mode cluster (spark.submit.deployMode) the driver runs elsewhere, without this command; give"
            " --deploy-mode client, call springtide.attach(query) in the application, or submit launch.py of the image"
            " (docs/attach.md, Kubernetes)"
        )
    if is_on(conf_given.get("spark.dynamicAllocation.enabled")):
        raise SetupError(
            "spark.dynamicAllocation.enabled is true: Spark would work against the policy; set it to false, such as with --conf"
            " spark.dynamicAllocation.enabled=false"
        )
    asked = options.read({f"spark.springtide.{name}": value for name, value in parsed.settings.items()}, {})
    scaler(asked.of_query("query"))
    options.target_s(asked.target, 1.0)
    if asked.max_executors is not None and asked.max_executors < asked.min_executors:
        raise OptionError(f"--max-executors {asked.max_executors} is below --min-executors {asked.min_executors}")


def command(parsed: Submission, home: Path, defaults: Mapping[str, str]) -> list[str]:
    """The command line of spark-submit. ``defaults``: the user's settings for all applications, which override Springtide's."""
    import springtide.spark

    conf_given = {**defaults, **given(parsed.spark)}
    conf = {f"spark.springtide.{name}": value for name, value in parsed.settings.items()}
    conf |= {name: value for name, value in DEFAULT_CONF.items() if name not in conf_given}
    pairs = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    launcher = Path(springtide.spark.__path__[0]) / "launch.py"
    return [str(home / "bin" / "spark-submit"), *pairs, *parsed.spark, str(launcher), *parsed.app]


def given(spark: Sequence[str]) -> dict[str, str]:
    """The settings among spark-submit's options."""
    found, rest = {}, list(spark)
    while rest:
        option = rest.pop(0)
        if option in SWITCHES:
            continue
        value = rest.pop(0)
        if option in ("--conf", "-c"):
            name, _, text = value.partition("=")
            found[name] = text
        elif option == "--deploy-mode":
            found["spark.submit.deployMode"] = value
    return found


def defaults(spark: Sequence[str], home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings in the properties file that spark-submit reads: the named file, or Spark's defaults."""
    named = [value for option, value in itertools.pairwise(spark) if option == "--properties-file"]
    file = Path(named[-1]) if named else Path(environ.get("SPARK_CONF_DIR", home / "conf")) / "spark-defaults.conf"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = [line.replace("=", " ", 1).split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def spark_home(environ: Mapping[str, str]) -> Path:
    """``SPARK_HOME``, or the Spark of the pip package."""
    if environ.get("SPARK_HOME"):
        home = Path(environ["SPARK_HOME"])
    else:
        package = importlib.util.find_spec("pyspark")
        if package is None or package.origin is None:
            raise SetupError("pyspark is not installed and SPARK_HOME is not set; pip install 'springtide[spark]'")
        home = Path(package.origin).parent
    if not (home / "bin" / "spark-submit").is_file():
        raise SetupError(f"there is no {home / 'bin' / 'spark-submit'}; set SPARK_HOME to where Spark is")
    return home
