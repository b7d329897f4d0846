"""Each program of README.md runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not os.environ.get("DATABASE_URL"), reason="DATABASE_URL is not set"),
]
README = (Path(__file__).parent.parent / "README.md").read_text()
PRELUDE = """
import os, psycopg
from leader_election import Elector, Term
URL = os.environ["DATABASE_URL"]
def connect():
    return psycopg.connect(URL)
def job(term):
    print("job", flush=True)
    term.wait()
"""
DJANGO = """
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
i = conninfo_to_dict(URL)
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql",
    "NAME": i["dbname"], "USER": i.get("user"), "HOST": i.get("host"), "PORT": i.get("port")}})
"""
EXPECTED = [
    ("term.wait(1)", "leading with token"),
    ("asyncio.run", "leading with token"),
    ("SIGTERM", "job"),
    ("renew_on_heartbeat", None),
    ("on_ousted", "ousted ELECTION resigned"),
    ("follow", "led by None"),
    ("every", None),
    ("seats", "in seat ELECTION/1"),
    ("sqlalchemy", "job"),
    ("django", "job"),
]
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_each_block_is_known() -> None:
    assert len(BLOCKS) == len(EXPECTED)


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_readme(number: int) -> None:
    word, expected = EXPECTED[number]
    block, url = BLOCKS[number], os.environ["DATABASE_URL"]
    assert word in block
    if word in ("sqlalchemy", "django"):
        pytest.importorskip(word)
    election = f"readme {uuid.uuid4()}"
    block = re.sub(r'"(scheduler|import|report)"', repr(election), block)
    block = block.replace("postgresql+psycopg://localhost/app", url.replace("://", "ql+psycopg://"))
    block = block.replace("postgresqlql", "postgresql").replace("postgresql://localhost/app", url)
    if word == "every":
        block = block.replace("INSERT INTO report VALUES (%s, now())", "SELECT %s::timestamptz")
    source = PRELUDE + (DJANGO if word == "django" else "") + block
    command = [sys.executable, "-u", "-W", "error", "-c", source]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            program.wait(4)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGINT)
        output, errors = program.communicate(timeout=10)
    assert not errors or errors.rstrip().endswith("KeyboardInterrupt"), errors
    if expected is not None:
        assert expected.replace("ELECTION", election) in output
