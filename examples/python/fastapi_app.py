"""A service of which one replica does background work, with a health check.

DATABASE_URL=postgres://... uvicorn fastapi_app:app
"""
import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from fastapi import FastAPI, Response
from leader_election import AsyncElector, AsyncTerm, PermanentError


async def connect() -> Any:
    return await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], connect_timeout=5)


async def job(term: AsyncTerm) -> None:
    async with await connect() as connection:
        while True:  # until it is cancelled
            async with connection.transaction():
                await term.guard(connection)
                await connection.execute("INSERT INTO work_done (token) VALUES (%s)", (term.token,))
            await asyncio.sleep(1)


elector = AsyncElector(connect, "scheduler", ttl=15)


async def lead() -> None:
    try:
        await elector.run(job)
    except PermanentError:
        logging.exception("this replica cannot lead")
        os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    running = asyncio.create_task(lead())
    yield
    elector.stop()
    await running


app = FastAPI(lifespan=lifespan)


@app.get("/health")
def health(response: Response) -> dict[str, Any]:
    if elector.health not in ("waiting", "leading"):
        response.status_code = 503
    return {"leader_election": elector.health, "terms": elector.terms, "errors": elector.errors}
