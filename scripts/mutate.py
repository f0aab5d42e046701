"""Mutation testing: how many small changes of the code do the tests notice?

mutmut makes the mutants. Its own runner puts a switch around each function and runs the functions of one
process do; here each mutant is a file in a copy of the tree, for all processes of a test. The tests run
in a fork of this process, which imports third-party modules once.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "mutants.toml"

ENOUGH = 0.9
"""The share of mutants that has to die."""

SECONDS = 30
"""How long the tests of a module may take for one mutant, unless the table says more. A mutant may hang."""

MEMORY_BYTES = 8 << 30
"""The address space of a run: a mutant may fill the memory."""

EXAMPLES = 50
"""Inputs that a property makes up for one mutant, where its test does not say how many."""

Outcome = Literal["killed", "survived", "timed out"]

SAID = (
    m.SimpleString(value=m.MatchIfTrue(lambda value: " " in value))
    | m.FormattedString()
    | m.ConcatenatedString()
)
"""Words for people. What they say is style; tests ask for the part that matters."""

LOGGED = m.Call(
    func=m.Attribute(value=m.Name("log") | m.Attribute(attr=m.Name("_logger")) | m.Name("logger"))
)


class Visitor(MutationVisitor):
    """mutmut's, without what is no behaviour (logs, assertions, casts); functions may have decorators."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if m.matches(node, LOGGED | m.Assert() | m.Call(func=m.Name("cast") | m.Name("TypeVar"))):
            return True
        if isinstance(node, cst.FunctionDef) and node.decorators:
            return False
        return bool(super()._skip_node_and_children(node))


@dataclass(frozen=True)
class Mutant:
    """A changed module: its text and the lines that it takes away and adds."""

    code: str
    was: str
    now: str
    diff: str


@dataclass
class Result:
    """What became of the mutants of a module."""

    module: str
    there_are: int
    broken: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    survivors: list[Mutant] = field(default_factory=list)
    excused: list[tuple[Mutant, str]] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.outcomes.total()

    @property
    def dead(self) -> int:
        return self.outcomes["killed"] + self.outcomes["timed out"]


def changed_text(before: cst.CSTNode, after: cst.CSTNode) -> bool:
    """Whether a mutation changes words for people, or the letters of a word more than once."""
    if isinstance(before, cst.SimpleString) and isinstance(after, cst.SimpleString):
        return " " in before.value or "XX" not in after.value
    if isinstance(before, cst.Call) and isinstance(after, cst.Call):
        kept = {id(each) for each in after.args}
        return any(m.matches(each.value, SAID) for each in before.args if id(each) not in kept)
    return False


def mutations_of(code: str) -> tuple[cst.Module, list[Mutation]]:
    """A module's tree and its mutations, in the order of its text."""
    visitor = Visitor(mutation_operators, IgnoredCode(set(), set(), set()))
    module = MetadataWrapper(cst.parse_module(code)).visit(visitor)
    return module, [
        each
        for each in visitor.mutations
        if isinstance(each.contained_by_top_level_function, cst.FunctionDef)
        and not changed_text(each.original_node, each.mutated_node)
    ]


def made(module: cst.Module, mutation: Mutation) -> Mutant | None:
    """The mutant, unless it is no Python."""
    code, text = module.code, deep_replace(module, mutation.original_node, mutation.mutated_node).code
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return None
    lines = list(difflib.unified_diff(code.splitlines(), text.splitlines(), lineterm="", n=0))[2:]
    was = " ".join(line[1:].strip() for line in lines if line[0] == "-")
    now = " ".join(line[1:].strip() for line in lines if line[0] == "+")
    return Mutant(text, was, now, "\n".join(lines)) if lines else None


def mutants_of(name: str, code: str, size: int | None, seed: int) -> Iterator[Mutant]:
    """Mutants of a module, each text once: all, or `size`, the same ones for the same code and seed."""
    module, mutations = mutations_of(code)
    if size is not None:
        random.Random(f"{seed} {name}").shuffle(mutations)
    texts = {code}
    for mutation in mutations:
        mutant = made(module, mutation)
        if mutant and mutant.code not in texts:
            texts.add(mutant.code)
            yield mutant
            if len(texts) - 1 == size:
                return


class Copy:
    """A copy of the tree, in which modules are mutated and tests run."""

    def __init__(self, place: Path) -> None:
        self.place = place
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / name)
        self._output = place / "mutate-output"
        self._loaded = place / "mutate-loaded"
        self._moment = int(time.time())

    def write(self, module: str, code: str) -> None:
        """Write the module, with a time of its own, so that no bytecode of another mutant counts as its."""
        path = self.place / module
        path.write_text(code)
        self._moment += 1
        os.utime(path, (self._moment, self._moment))

    def run(self, tests: Sequence[str], seconds: float, *, first: bool = False) -> tuple[Outcome, str]:
        """Run tests until one fails, in a fork. Returns what came of it and what pytest said.

        With `first`, imports in this process what the tests imported from elsewhere, for the next runs.
        """
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            self._be_pytest(tests, first=first)
        outcome: Outcome = "timed out"
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    outcome = "survived" if status == 0 else "killed"
                    break
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what a test left behind, or all of it
        if outcome == "timed out":
            os.waitpid(pid, 0)
        if first and self._loaded.exists():
            for name in self._loaded.read_text().split():
                try:
                    __import__(name)
                except Exception:  # noqa: BLE001 - the tests import it themselves then
                    continue
        return outcome, self._output.read_text(errors="replace")

    def _be_pytest(self, tests: Sequence[str], *, first: bool) -> None:
        status = 70
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            output = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            os.chdir(self.place)
            os.environ["PYTHONPATH"] = str(self.place)
            sys.path[:] = [str(self.place), *(each for each in sys.path if each not in ("", str(ROOT)))]
            for name in [name for name in sys.modules if name.partition(".")[0] == "scripts"]:
                del sys.modules[name]
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            if not first:  # the first run compiled all that does not change
                sys.dont_write_bytecode = True
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            status = self._pytest(tests)
            if first:
                self._loaded.write_text("\n".join(self._foreign()))
            sys.stdout.flush()
        finally:
            os._exit(status)

    def _pytest(self, tests: Sequence[str]) -> int:
        import hypothesis
        import pytest

        # A counterexample is enough; nobody wants the smallest one.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutate", phases=phases, max_examples=EXAMPLES, database=None, derandomize=True, deadline=None
        )
        options = ["-x", "-q", "--tb=line", "--no-header", "--assert=plain", "-p", "no:cacheprovider"]
        return int(pytest.main([*options, "--hypothesis-profile=mutate", *tests]))

    def _foreign(self) -> Iterator[str]:
        for name, module in list(sys.modules.items()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
            if name != "__main__" and not origin.startswith(str(self.place)) and origin:
                yield name


def excuse(mutant: Mutant, module: str, known: Sequence[dict[str, str]]) -> str | None:
    """Why this survivor may live, if the table says so."""
    for each in known:
        if (each["module"], each["was"], each["now"]) == (module, mutant.was, mutant.now):
            return each["reason"]
    return None


def try_module(copy: Copy, module: str, entry: dict[str, Any], known: Sequence[dict[str, str]],
               mutants: Iterable[Mutant], result: Result) -> None:  # fmt: skip
    """Run the module's tests for each mutant, and print each survivor as a diff."""
    original = (ROOT / module).read_text()
    seconds = entry.get("seconds", SECONDS)
    started = time.monotonic()
    outcome, said = copy.run(entry["tests"], seconds, first=True)
    print(f"{module}: {result.there_are} mutants, tests take {time.monotonic() - started:.1f} s", flush=True)
    if outcome != "survived":
        print(said[-3000:])
        print(f"{module}: its tests fail without a mutant, or take over {seconds} s.")
        print("Mend them, or give them more in tests/mutants.toml.")
        result.broken = True
        return
    try:
        for mutant in mutants:
            copy.write(module, mutant.code)
            outcome, said = copy.run(entry["tests"], seconds)
            reason = excuse(mutant, module, known) if outcome == "survived" else None
            result.outcomes["excused" if reason else outcome] += 1
            if reason:
                result.excused.append((mutant, reason))
            elif outcome == "survived":
                result.survivors.append(mutant)
                print(f"survived: {module}\n{mutant.diff}\n", flush=True)
            elif outcome == "timed out":
                print(f"timed out: {module}\n{mutant.diff}\n", flush=True)
    finally:
        copy.write(module, original)


HEADS = ("there", "tried", "killed", "timed out", "excused", "survived")


def report(results: Sequence[Result]) -> bool:
    """Print a table; return whether enough mutants died. Excused survivors are subtracted."""
    print(f"\n{'module':52}" + "".join(f"{head:>10}" for head in HEADS))
    for each in results:
        ends = each.outcomes
        figures = (each.there_are, each.tried, ends["killed"], ends["timed out"], len(each.excused))
        print(f"{each.module:52}" + "".join(f"{figure:10}" for figure in (*figures, len(each.survivors))))
    counted = sum(each.tried - len(each.excused) for each in results)
    dead = sum(each.dead for each in results)
    for each in results:
        for mutant, reason in each.excused:
            print(f"excused: {each.module}: {mutant.was}  =>  {mutant.now}: {reason}")
    if not counted:
        print("No mutants.")
        return True
    print(f"{dead} of {counted} mutants died ({dead / counted:.0%}).")
    return dead >= ENOUGH * counted


def stop(number: int, frame: object) -> None:
    """End as by Ctrl-C: with a table of what there is."""
    raise KeyboardInterrupt


def main() -> int:
    """Run as `scripts/mutate` says."""
    parser = argparse.ArgumentParser(prog="scripts/mutate")
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="paths such as supervisor/acp/framing.py"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants of each module")
    parser.add_argument("--seed", type=int, default=1, help="which ones (%(default)s)")
    parser.add_argument("--list", action="store_true", help="only count the mutants")
    options = parser.parse_args()

    table = tomllib.loads(TABLE.read_text())
    modules = options.modules or list(table["modules"])
    for module in modules:
        if module not in table["modules"]:
            parser.error(f"{module} is not in tests/mutants.toml. Add it with its tests.")

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    results = []
    with tempfile.TemporaryDirectory(prefix="ostler-mutate-") as place:
        copy = None if options.list else Copy(Path(place))
        for module in modules:
            code = (ROOT / module).read_text()
            result = Result(module, len(mutations_of(code)[1]))
            results.append(result)
            if copy:
                mutants = mutants_of(module, code, options.sample, options.seed)
                try:
                    try_module(
                        copy, module, table["modules"][module], table.get("survivors", []), mutants, result
                    )
                except KeyboardInterrupt:
                    break
    enough = report(results)
    return 2 if any(each.broken for each in results) else 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
