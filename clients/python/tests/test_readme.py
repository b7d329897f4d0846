"""Each program of README.md, and each integration of examples/python, runs."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import DIRECT, until
from prometheus_client import generate_latest

from leader_election import Elector

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not DIRECT, reason="DATABASE_URL is not set"),
]
HERE = Path(__file__).parent.parent
EXAMPLES = HERE.parent.parent / "examples" / "python"
BLOCKS = re.findall(r"^```python\n(.*?)^```", (HERE / "README.md").read_text(), re.S | re.M)
METRICS = next(block for block in BLOCKS if "prometheus_client" in block)
BLOCKS.remove(METRICS)
LEADS = "leading with token"
EXPECTED = [
    LEADS,
    LEADS,
    "",
    LEADS,
    "migrating",
    "",
    "stopped stopped 1",
    "led by None",
    "",
    "done: True",
    LEADS,
]
HEAD = "from leader_election import Elector, Term\nimport psycopg, threading\n"
PRELUDE = HEAD + BLOCKS[0][BLOCKS[0].index("def connect") : BLOCKS[0].rindex("Elector(")]
TABLES = """
CREATE TABLE IF NOT EXISTS work_done (at timestamptz DEFAULT clock_timestamp(), token bigint);
CREATE TABLE IF NOT EXISTS report (due timestamptz, at timestamptz)"""


def begin(*command: str) -> subprocess.Popen[str]:
    """Begin a program."""
    pipe, words = subprocess.PIPE, (sys.executable, "-u", *command)
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=EXAMPLES)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme(number: int, election: str, db: Any) -> None:
    db.execute(TABLES)
    source = re.sub(r'"(scheduler|import|report)"', repr(election), PRELUDE + BLOCKS[number])
    source = re.sub("(sql|psycopg)://localhost/app", rf"\1://{DIRECT.split('//')[1]}", source)
    timer = "threading.Timer(4, elector.stop).start()\n"
    source = re.sub(r"^elector\.run", timer + r"elector.run", source, flags=re.M)
    with begin("-W", "error", "-c", source) as program:
        assert program.stdout
        if EXPECTED[number]:
            assert any(EXPECTED[number] in line for line in program.stdout)
        with suppress(subprocess.TimeoutExpired):
            program.wait(0 if EXPECTED[number] == LEADS else 4)
        if program.poll() is None:
            program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=15)
    assert not errors or errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert "election" not in errors.split("Traceback")[0], errors
    assert not db.execute("SELECT FROM le_leader(%s)", (election,)).fetchall()


def test_metrics(election: str) -> None:
    shown: list[dict[str, str]] = []

    def show() -> None:
        text = generate_latest().decode().replace(f'election="{election}"', "E")
        shown.append(dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#"))

    def job(_: Any) -> None:
        show()
        if len(shown) == 1:
            raise OSError
        program["elector"].stop()

    program: Any = {"Elector": Elector, "connect": lambda: psycopg.connect(DIRECT), "job": job}
    exec(METRICS.replace('"scheduler"', repr(election)).replace("9100", "0"), program)
    show()
    for name, values in {
        "leading{E}": ["1.0", "1.0", "0.0"],
        "terms_total{E}": ["1.0", "2.0", "2.0"],
        "errors_total{E}": ["0.0", "1.0", "1.0"],
        'term_seconds_bucket{E,le="10.0",reason="job failed"}': [None, "1.0", "1.0"],
        'term_seconds_count{E,reason="resigned"}': [None, None, "1.0"],
    }.items():
        assert [samples.get(f"leader_election_{name}") for samples in shown] == values, shown
    assert float(shown[-1]["leader_election_confirmations_total{E}"]) >= 2


@pytest.mark.parametrize("example", ["fastapi_app", "apscheduler_jobs", "django_command"])
def test_examples(example: str, db: Any) -> None:
    db.execute(TABLES)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    web = ["-m", "uvicorn", "fastapi_app:app", "--port", port]
    [last] = db.execute("SELECT coalesce(max(token), 0) FROM work_done").fetchone()
    done = "SELECT FROM work_done WHERE token > %s HAVING count(*) > 1"
    with begin(*(web if example == "fastapi_app" else [f"{example}.py"])) as program:
        until(lambda: db.execute(done, (last,)).fetchall(), 30)
        if example == "fastapi_app":
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
                assert b'"leading","terms":1' in answer.read()
        program.send_signal(signal.SIGTERM)
        output = program.communicate(timeout=15)
    assert program.returncode in (0, -signal.SIGTERM), output
    assert not db.execute("SELECT FROM le_leader('scheduler')").fetchall()
