"""Command line: ``python -m experiments list | run NAME | report``.

Exit codes: 0 every claim with a threshold holds; 1 at least one does not; 2 wrong usage
or bad input; 3 the experiment itself raised; 130 interrupted.
"""

import argparse
import difflib
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from experiments.discovery import find_experiments
from experiments.files import InputError

EXTRA = ("matplotlib", "orbax", "rich", "sklearn")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("interrupted: --resume goes on after the last stage", file=sys.stderr)
        return 130
    except Exception as error:
        message = _one_line(error)
        if message is None:
            # Told apart from a claim that does not hold, which is exit code 1.
            traceback.print_exc()
            return 3
        print(f"error: {message}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str | None:
    """What to tell a person who can put ``error`` right; None if nobody there can."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ImportError):
        cause = error if error.name else error.__cause__
        missing = str(getattr(cause, "name", None))
        if missing.partition(".")[0] in EXTRA:
            return f"{missing} is missing: pip install 'jaxopt-suite[experiments]'"
        return None
    from jaxopt_suite.core.checkpoint import CheckpointError

    return str(error) if isinstance(error, CheckpointError) else None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m experiments", description=_first_line(__doc__))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="name the experiments there are")
    listing.set_defaults(command=_list)

    run = commands.add_parser("run", help="run one and write results/NAME/SCALE/")
    run.add_argument("name", metavar="NAME", help="an experiment that list names")
    run.add_argument(
        "--scale",
        choices=("smoke", "default", "full"),
        default="default",
        help="smoke: a minute; default: a laptop; full: the paper's own size",
    )
    run.add_argument("--seeds", type=_count, metavar="N", help="number of seeds")
    run.add_argument(
        "--resume",
        action="store_true",
        help="go on after the last finished stage; a changed script does not redo it",
    )
    run.set_defaults(command=_run)

    report = commands.add_parser("report", help="render all results as two pages")
    report.set_defaults(command=_report)
    for command in (run, report):
        command.add_argument(
            "--out",
            type=Path,
            default=Path("results"),
            metavar="DIR",
            help="folder of all results (default: %(default)s)",
        )
    return parser


def _list(options: argparse.Namespace) -> int:
    del options
    found = find_experiments()
    width = max(map(len, found), default=0)
    for name, summary in found.items():
        print(f"{name:{width}}  {summary}")
    return 0


def _run(options: argparse.Namespace) -> int:
    found = find_experiments()
    if options.name not in found:
        near = difflib.get_close_matches(options.name, found, cutoff=0.4)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(
            f"unknown experiment {options.name!r}: {meant}"
            "`python -m experiments list` names them all"
        )
    from experiments.runner import print_claims, run_experiment

    # Imported before any device is touched: an experiment may set how many there are.
    module = importlib.import_module(f"experiments.{options.name}")
    result = run_experiment(
        module,
        options.scale,
        options.out,
        num_seeds=options.seeds,
        resume=options.resume,
    )
    print_claims(result.claims, f"{options.name}, {options.scale}")
    print(f"wrote {options.out / options.name / options.scale}")
    failed = [claim.text for claim in result.claims if claim.holds is False]
    for text in failed:
        print(f"does not hold: {text}", file=sys.stderr)
    return 1 if failed else 0


def _report(options: argparse.Namespace) -> int:
    from experiments.reporting import write_report

    for page in write_report(options.out):
        print(page)
    return 0


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, got {text!r}")
    return count


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
