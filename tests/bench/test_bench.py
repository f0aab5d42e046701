"""The code of `scripts/bench`: what it reads, what it prints, and that it measures."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts import bench
from scripts.benchmark import database, document, peer_store, processes
from scripts.benchmark.cases import CASES, Case, Figure, Target, Unable, chosen, percentile
from scripts.benchmark.client import FINISHED, BenchError, Client, Socket, exchange, read_until
from scripts.benchmark.driving import drain
from scripts.benchmark.lines import Panel
from scripts.benchmark.lines import svg as panels
from scripts.benchmark.plot import svg
from scripts.benchmark.relay_floor import framed
from scripts.benchmark.results import HEADLINES, Results, Row, number
from scripts.benchmark.servers import Ostler, Peer
from scripts.benchmark.shared import RoundRobin
from tests.support.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
LESS = Figure("less_ms", "less of it", "ms", "somehow", aim=3)
MORE = Figure("more", "more of it", "/s", "somehow", more_is_better=True, aim=100)
MACHINE = {
    "version": "0.1.0 (abc)",
    "date": "2026-11-22 10:00 UTC",
    "processor": "A <fast> one",
    "processors": 2,
    "system": "Linux",
    "python": "3.11",
    "load_before": 0.1,
    "load_after": 0.2,
    "seconds": 5,
}


def case_of(*figures: Figure) -> Case:
    return Case("some", figures, lambda target, part: {}, True, frozenset({"ostler", "peer"}))


@pytest.fixture
def results() -> Results:
    made = Results(["ostler", "peer"], MACHINE)
    made.add(case_of(LESS, MORE), "ostler", {"less_ms": 4.0, "more": 50.0})
    made.add(case_of(LESS, MORE), "ostler", {"less_ms": 2.0, "more": 80.0})
    made.add(case_of(LESS, MORE), "peer", {"less_ms": 200.0, "more": Unable("it has none")})
    return made


def a_socket(data: bytes) -> Socket:
    """A socket of the bench that has got these bytes, without a server."""
    ours, theirs = socket.socketpair()
    made = Socket.__new__(Socket)
    made.socket, made._buffer = ours, bytearray()
    theirs.sendall(data)
    made.receive()
    theirs.close()
    return made


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_frames_are_cut_whatever_their_size(size):
    made = a_socket(framed([b"x" * size, b"last"])[:100_000])
    assert list(made.frames()) == [b"x" * size, b"last"]
    assert made.rest() == b""
    made.close()


def test_a_frame_that_has_not_come_whole_waits():
    made = a_socket(framed([b"first", b"second"])[:-1])
    assert list(made.frames()) == [b"first"]
    made._buffer += b"d"
    assert list(made.frames()) == [b"second"]
    made.close()


def answered(*pieces: bytes) -> tuple[int, bytes]:
    """What the bench's client makes of an answer that comes in these pieces."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        ours.settimeout(5)
        found = pool.submit(exchange, ours, b"GET / HTTP/1.1\r\n\r\n")
        assert theirs.recv(100) == b"GET / HTTP/1.1\r\n\r\n"
        for piece in pieces:
            theirs.sendall(piece)
            time.sleep(0.01)
        theirs.shutdown(socket.SHUT_WR)
        return found.result(5)


HEAD = b"HTTP/1.1 200 \r\nX: content-length\r\ncontent-length: 5\r\ndate: today\r\n\r\n"


@pytest.mark.parametrize(
    "pieces", [(HEAD + b"whole",), (HEAD, b"who", b"le"), (HEAD[:30], HEAD[30:] + b"whole")]
)
def test_an_answer_is_read_up_to_its_length(pieces):
    assert answered(*pieces) == (200, b"whole")


def test_an_answer_without_a_length_has_no_body_or_is_refused():
    assert answered(b"HTTP/1.1 204 No Content\r\n\r\n") == (204, b"")
    with pytest.raises(BenchError, match="without a Content-Length"):
        answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


@pytest.mark.parametrize("pieces", [(), (HEAD[:20],), (HEAD, b"wh")])
def test_an_answer_that_breaks_off_is_none(pieces):
    with pytest.raises(ConnectionResetError):
        answered(*pieces)


def test_a_ping_is_answered_and_is_no_frame():
    ours, theirs = socket.socketpair()
    made = Socket.__new__(Socket)
    made.socket, made._buffer = ours, bytearray(b"\x89\x02hi" + framed([b"event"]))
    assert list(made.frames()) == [b"event"]
    assert theirs.recv(100) == b"\x8a\x82" + bytes(4) + b"hi"
    made.close()
    theirs.close()


def test_sockets_are_read_until_all_have_ended():
    seen: list[bytes] = []
    event = b"{" + FINISHED + b"}"
    made = [a_socket(framed([b"one", event])), a_socket(framed([b"two", event]))]
    for each in made:  # what has arrived before counts when something arrives
        each.socket.close()
        each.socket, other = socket.socketpair()
        other.sendall(framed([b"three"]))
        other.detach()
    read_until(made, lambda frame, arrival: seen.append(frame))
    assert sorted(seen) == sorted([b"one", b"two", event, event, b"three", b"three"])
    for each in made:
        each.close()


def test_a_socket_that_never_ends_is_given_up():
    ours, theirs = socket.socketpair()
    made = Socket.__new__(Socket)
    made.socket, made._buffer = ours, bytearray()
    with pytest.raises(BenchError, match="not finished after 0 s"):
        read_until([made], seconds=0)
    made.close()
    theirs.close()


def test_draining_finds_an_end_that_came_in_two_parts():
    ours, theirs = socket.socketpair()
    made = Socket.__new__(Socket)
    made.socket, made._buffer = ours, bytearray(b"kind" + FINISHED[:10])
    theirs.sendall(b"")
    theirs.sendall(FINISHED[10:] + b"mark")
    assert drain([made], b"mark") > 0
    made.close()
    theirs.close()


def test_the_best_round_counts(results):
    less, more = results.rows
    assert (less.values["ostler"], more.values["ostler"]) == (2.0, 80.0)
    assert (less.missed(), more.missed()) == (False, True)


@pytest.mark.parametrize(
    ("figure", "ostler", "peer", "ratio"),
    [(LESS, 2.0, 200.0, 100.0), (LESS, 200.0, 2.0, 0.01), (MORE, 80.0, 8.0, 10.0), (MORE, 80.0, 0.0, None)],
)
def test_a_ratio_above_one_means_better(figure, ostler, peer, ratio):
    assert Row("some", figure, {"ostler": ostler, "peer": peer}).ratio() == ratio
    assert Row("some", figure, {"ostler": ostler}).ratio() is None


def test_the_table(results):
    lines = results.table().splitlines()
    assert lines[0].split() == ["Ostler", "peer", "unit", "x", "peer", "goal"]
    assert lines[1].split() == ["less", "of", "it", "2.00", "200", "ms", "100", "3.00"]
    assert lines[2].split() == ["more", "of", "it", "80.0", "cannot", "/s", "-", "100", "missed"]
    assert lines[-1] == "peer cannot: more of it: it has none"
    assert len({len(line) for line in lines[:2]}) == 1


def test_the_table_of_the_document(results):
    asked, quiet = (Figure(key, key, "ms", "by a clock") for key in ("first_turn_ms", "of_no_interest"))
    results.add(case_of(asked, quiet), "ostler", {"first_turn_ms": 1.0, "of_no_interest": 1.0})
    assert results.markdown().splitlines() == [
        "|  | Ostler | peer | goal |",
        "| --- | ---: | ---: | ---: |",
        "| less of it (ms) | 2.00 | 200 | 3.00 |",
        "| more of it (/s) | 80.0 | cannot | 100 missed |",
        "| first_turn_ms (ms) | 1.00 | - |  |",
    ]


def test_the_names_of_headlines_are_those_of_figures():
    assert {figure.key for case in CASES.values() for figure in case.figures} >= HEADLINES


def test_json_has_everything(results):
    text = json.dumps(results.as_json())
    again = Results.from_json(json.loads(text))
    assert again.table() == results.table()
    assert json.loads(text)["figures"]["less_ms"]["times_better_than_peer"] == 100


def test_the_plot_is_svg_with_a_bar_for_each_ratio(results):
    drawn = ElementTree.fromstring(svg(results))
    name = "{http://www.w3.org/2000/svg}"
    (bar,) = drawn.findall(f"{name}rect")
    assert float(bar.attrib["width"]) > 100
    texts = "".join(each.text or "" for each in drawn.findall(f"{name}text"))
    assert "A <fast> one" in texts
    assert "x 100 (2.00 / 200 ms)" in texts


def test_panels_of_lines_are_svg_within_their_bounds():
    linear = Panel("A & B", "seconds", {"one": [(-5.0, 0.0), (20.0, 3.0)], "two": [(0.0, 1.0)]})
    logarithmic = Panel("More", "servers", {"one": [(10.0, 0.01), (1000.0, 40.0)]}, logarithmic=True)
    drawn = ElementTree.fromstring(panels("Title", [linear, logarithmic]))
    name = "{http://www.w3.org/2000/svg}"
    lines = [each.attrib["d"] for each in drawn.findall(f"{name}path") if each.get("fill") == "none"]
    assert lines[0] == "M60.0 214.0L790.0 64.0"
    assert lines[2] == "M60.0 442.0L790.0 292.0"
    texts = [each.text for each in drawn.findall(f"{name}text")]
    assert {"A & B", "one", "two", "-5", "20", "1,000", "0.01", "10"} <= set(texts)


def test_the_document_keeps_what_is_around_the_table(results):
    text = f"before\n{document.BEGIN}old\n{document.END}after\n"
    found = document.replaced(text, document.section(results))
    assert found.startswith("before\n")
    assert found.endswith("after\n")
    assert "old" not in found
    assert results.markdown() in found
    assert "with Ostler 0.1.0 (abc)" in found
    with pytest.raises(ValueError, match="has not the marks"):
        document.replaced("nothing", "new")
    document.replaced(document.DOCUMENT.read_text(), "new")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (-12.34, "-12.3")],
)
def test_numbers_have_three_figures(value, text):
    assert number(value) == text


def test_percentiles():
    values = range(100, 0, -1)
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]


def test_cases_are_chosen_by_name_in_their_own_order():
    assert [each.name for each in chosen(["turn", "start"])] == ["start", "turn"]
    assert list(chosen([])) == list(CASES.values())
    with pytest.raises(KeyError):
        list(chosen(["nonsense"]))


def test_each_figure_says_its_unit_and_how_it_is_measured():
    figures = [figure for each in CASES.values() for figure in each.figures]
    assert len({figure.key for figure in figures}) == len(figures)
    assert all(figure.unit and figure.how and figure.words for figure in figures)


def test_a_target_that_fails_is_named_and_ostler_alone_ends_the_run():
    def measure(target: Target, part: float) -> dict[str, float]:
        if target.name == failing:
            raise BenchError("it went away\nwith words")
        return {"less_ms": 1.0}

    failing = "peer"
    each = Case("some", [LESS], measure, True, frozenset({"ostler", "peer"}))
    targets = [Target(Ostler, Path("o")), Target(Peer, Path("p"))]
    made = Results(["ostler", "peer"], MACHINE)
    bench.run([each], targets, made, 1.0, 2)
    assert made.reasons() == ["peer cannot: less of it: it went away"]
    failing = "ostler"
    with pytest.raises(BenchError, match="it went away"):
        bench.run([each], targets, made, 1.0, 2)


def test_memory_and_processor_time_of_a_process():
    with subprocess.Popen(
        [sys.executable, "-c", "x = b'x' * (30 << 20); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.memory_mb([process.pid]) > 30
        assert process.pid in processes.children(os.getpid())
        assert processes.cpu_seconds([process.pid]) >= 0
        process.communicate(b"\n")


def test_the_peers_store_is_filled(tmp_path):
    name = "72f5d02e257f4b15908303dd88da1f94"
    place = tmp_path / peer_store.PLACE / name
    (place / "events").mkdir(parents=True)
    dashed = "72f5d02e-257f-4b15-9083-03dd88da1f94"
    (place / "base_state.json").write_text(json.dumps({"id": dashed}))
    (place / "owner_lease.json").write_text("{}")
    body = '{"id":"a","parent_id":"z","kind":"ACPToolCallEvent"}'
    (place / "events" / "event-00000-a.json").write_text(body)
    (place / "events" / ".eventlog-len-1.marker").touch()
    peer_store.multiply_events(tmp_path, dashed, 4)
    files = sorted((place / "events").iterdir())
    events = [json.loads(path.read_text()) for path in files]
    assert [path.name[:11] for path in files] == [f"event-0000{n}" for n in range(4)]
    assert [event["parent_id"] for event in events[1:]] == [event["id"] for event in events[:-1]]
    peer_store.multiply_conversations(tmp_path, 3)
    copies = list((tmp_path / peer_store.PLACE).iterdir())
    assert len(copies) == 3
    found = {json.loads((each / "base_state.json").read_text())["id"].replace("-", "") for each in copies}
    assert found == {each.name for each in copies}


def test_the_command_measures_a_case():
    """As a person runs it, but in the environment that is there."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench", "--quick", "--case", "turn", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["targets"] == ["ostler", "floor", "bare"]
    turn = found["figures"]["turn_p50_ms"]
    assert turn["unit"] == "ms"
    assert set(turn["values"]) == {"ostler", "floor"}
    assert all(value > 0 for value in turn["values"].values())


def cases_of(*arguments: str) -> tuple[list[str], list[str]]:
    """The names of the targets and of the cases that a run with these arguments has."""
    options = bench.parsed(arguments)
    targets = [target.name for target in bench.made_targets(options)]
    return targets, [each.name for each in bench.wanted(options, targets)]


def test_a_run_has_the_cases_that_one_of_its_targets_can_do():
    targets, cases = cases_of("--database")
    assert targets == ["ostler", "postgres", "three"]
    assert sorted(cases) == sorted(database.CHOSEN)
    assert {figure.key for name in cases for figure in CASES[name].figures} >= database.GOALS.keys()
    assert cases_of("--database", "--case", "turn")[1] == ["turn"]
    _, usual = cases_of()
    assert usual == [name for name in CASES if name != "forwarded"]


def databases() -> Results:
    made = Results(["ostler", "postgres", "three"], MACHINE | {"sync_ms": 0.25})
    rate = Figure("tools_1", "tool events", "/s", "somehow", more_is_better=True, aim=25_000)
    page = Figure("page_10k_ms", "a page", "ms", "somehow", aim=1)
    more = Figure("more_get_ms", "what forwarding adds", "ms", "somehow", aim=1.5)
    case = Case("some", [rate, page, LESS, more], lambda target, part: {}, True, frozenset({"ostler"}))
    made.add(case, "ostler", {"tools_1": 100.0, "page_10k_ms": 0.5, "less_ms": 1.0})
    made.add(case, "postgres", {"tools_1": 59.0, "page_10k_ms": 1.0, "less_ms": 4.0})
    made.add(case, "three", {"less_ms": 8.0, "more_get_ms": 1.6})
    return made


def test_the_table_of_databases_says_what_postgresql_takes_of_sqlites():
    lines = [line.split() for line in database.table(databases()).splitlines()]
    assert lines[0] == ["SQLite", "PostgreSQL", "3", "servers", "unit", "PostgreSQL", "/", "SQLite", "goal"]
    assert lines[1][2:] == ["100", "59.0", "-", "/s", "0.590", "at", "least", "0.600,", "missed"]
    assert lines[2][2:] == ["0.500", "1.00", "-", "ms", "2.00", "at", "most", "2.00"]
    assert lines[3][3:] == ["1.00", "4.00", "8.00", "ms", "4.00", "-"]
    assert lines[4][3:] == ["-", "-", "1.60", "ms", "-", "at", "most", "1.50", "ms,", "missed"]
    assert " ".join(lines[6]).startswith("The disk takes 0.250 ms for each commit")


def test_json_has_the_goals_of_databases():
    found = json.loads(json.dumps(database.as_json(databases())))["database"]
    assert found["tools_1"] == {"postgres_to_sqlite": 0.59, "goal": "at least 0.600", "met": False}
    assert found["page_10k_ms"] == {"postgres_to_sqlite": 2.0, "goal": "at most 2.00", "met": True}
    assert found["less_ms"] == {"postgres_to_sqlite": 4.0}
    assert found["more_get_ms"] == {"postgres_to_sqlite": None, "goal": "at most 1.50 ms", "met": False}


def test_requests_and_sockets_go_to_the_servers_in_turn():
    class Counting(Client):
        def send(self, request: bytes) -> bytes:
            asked.append(self.port)
            return b"{}"

    asked: list[int] = []
    client = RoundRobin([Counting(port) for port in (1, 2, 3)])
    for _ in range(4):
        client.call("GET", "/")
    assert asked == [1, 2, 3, 1]
    assert [client.port for _ in range(4)] == [1, 2, 3, 1]


def test_the_command_measures_databases(postgres: Cluster):
    """It starts a PostgreSQL of its own; the fixture skips where there is none."""
    cases = [word for name in ("tools-of-three", "forwarded") for word in ("--case", name)]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench", "--quick", "--database", *cases, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["figures"]["tools_of_three"]["values"]) == {"ostler", "postgres", "three"}
    figures = {key: each["values"].get("three", 0) for key, each in found["figures"].items()}
    assert 0 < figures["direct_message_ms"] < figures["forwarded_message_ms"]
    assert found["database"]["tools_of_three"]["postgres_to_sqlite"] > 0
    assert found["machine"]["sync_ms"] > 0


def test_the_command_refuses_what_it_does_not_know(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--case", "nonsense"])
    assert ended.value.code == 2
    assert "nonsense" in capsys.readouterr().err
    assert bench.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert "turns-at-once" in listed
    assert "    warm turn, p50 (ms): message to finished" in listed


def test_sizes_of_frames_are_those_of_the_protocol():
    assert framed([b"x" * 126])[:4] == b"\x81\x7e" + struct.pack(">H", 126)
    assert framed([b"x" * 65536])[:10] == b"\x81\x7f" + struct.pack(">Q", 65536)
