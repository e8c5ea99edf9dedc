"""Damage checkpoints from the command line: ``cd tests && python -m damage --file '*/manifests/*' --harm delete``."""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from damage import harm, moments, table
from damage.harm import Case
from damage.moments import Moments
from damage.trial import Lab, sample

log = logging.getLogger("damage")


class Sessions:
    """One session for all cases; another one when a case has broken it."""

    def __init__(self) -> None:
        self._session: Any = None

    def __call__(self, broken: bool = False) -> Any:
        from springtide.spark.driver import session as sessions
        from springtide.spark.private import jvm

        if self._session is not None and (broken or not jvm.is_alive(self._session)):
            self.close()
        if self._session is None:
            self._session = sessions.create(sessions.local_master(2), "springtide-damage")
            self._session.sparkContext.setLogLevel("OFF")
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None


def main() -> int:
    options = _options()
    logging.basicConfig(level=logging.CRITICAL)
    root = options.root.absolute() if options.root else Path(tempfile.mkdtemp(prefix="springtide-damage-"))
    sessions = Sessions()
    entries = []
    try:
        lab = Lab(_moments(root, sessions), sessions)
        chosen = [case for moment in options.moment or moments.NAMES for case in _chosen(lab.cases(moment), options)]
        random.Random(options.seed).shuffle(chosen)  # a run that is interrupted has tried some of everything
        if options.list:
            print(*chosen, sep="\n")
            return 0
        for number, tried in enumerate(lab.all(chosen), start=1):
            entries.append({**table.entry(tried), "seconds": round(tried.seconds, 2)})
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entries[-1]) + "\n")
            if not options.json and (options.all or not tried.verdict.passes):
                print(f"{number}/{len(chosen)} {tried.seconds:4.1f} s {tried}", flush=True)
    finally:
        sessions.close()
        if options.root is None:
            shutil.rmtree(root)
    print(json.dumps({"counts": table.counts(entries), "cases": entries}) if options.json else "\n".join(table.lines(entries)))
    return 0 if all(entry["verdict"] in ("exact", "refused") for entry in entries) else 1


def _moments(root: Path, sessions: Sessions) -> Moments:
    if (root / moments.MADE).exists():
        return moments.opened(root)
    root.mkdir(parents=True, exist_ok=True)
    return moments.make(root, sessions())


def _chosen(cases: list[Case], options: argparse.Namespace) -> list[Case]:
    done = _done(options.results)
    fitting = [case for case in cases if case.matches(options.file, options.harm) and str(case) not in done]
    if options.kinds:
        fitting = sample(fitting, options.seed)
    if options.sample is not None and options.sample < len(fitting):
        fitting = random.Random(options.seed).sample(fitting, options.sample)
    return fitting


def _done(results: Path | None) -> set[str]:
    """The cases that earlier calls have tried. Only with the same ``--root`` do files have the same names."""
    if results is None or not results.exists():
        return set()
    return {json.loads(line)["case"] for line in results.read_text(encoding="utf-8").splitlines()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m damage", description="Damage checkpoints, and see what a run makes of them."
    )
    parser.add_argument("--moment", action="append", choices=moments.NAMES, help="only this moment; may be repeated")
    parser.add_argument("--file", metavar="GLOB", help="only files and folders whose path fits, such as '*/manifests/*'")
    parser.add_argument("--harm", metavar="GLOB", help=f"only this harm: {', '.join(harm.HARMS)}, or a pattern of them")
    parser.add_argument("--sample", type=int, metavar="N", help="so many cases of each moment, chosen by the seed")
    parser.add_argument("--kinds", action="store_true", help="one case of each kind of file, as in `make test`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, metavar="DIR", help="make the moments here, or take those that are here already")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append every case as JSON; skip those that are in it")
    parser.add_argument("--list", action="store_true", help="list the cases, and try none")
    parser.add_argument("--all", action="store_true", help="print the cases that pass, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
