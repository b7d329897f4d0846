"""A leader in session scope, with asyncio: psycopg 3, one connection kept aside; the job is a task that is cancelled.

Use it where the program can keep a connection of its own: straight to PostgreSQL, or through PgBouncer in session
mode. Never on a connection of a pool, nor through PgBouncer in transaction mode: see lease.py for those.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 campaign_async.py ELECTION IDENTITY
"""
import asyncio
import os
import signal
import socket
import sys
import time

import psycopg

ELECTION, IDENTITY = sys.argv[1:3]

# autocommit: le_campaign waits without a snapshot only outside a transaction block.
# The rest finds out in 5 s that the server's host is gone, before the server gives us up (dead_peer_timeout, 15 s).
CONNECTION = dict(
    autocommit=True, connect_timeout=5,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=5, tcp_user_timeout=5000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


async def do_the_job(token):
    while True:
        await asyncio.sleep(0.1)  # work here; pass the token along with what you write elsewhere


async def readable(conn, seconds):
    """Sleep, but wake when the connection has something to say: that it is lost, for one."""
    loop, ready, fd = asyncio.get_running_loop(), asyncio.Event(), conn.fileno()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(fd)


async def ask(conn, query):
    """Ask the server, and break the connection if no answer comes, as when a proxy hangs: that raises OperationalError.
    (Not asyncio.timeout: psycopg 3.2 and later wait for the server when a statement is cancelled.)"""
    watchdog = asyncio.get_running_loop().call_later(5, hang_up, conn.fileno())
    try:
        cursor = await conn.execute(query, (ELECTION, IDENTITY))
        return (await cursor.fetchone())[0]
    finally:
        watchdog.cancel()


def hang_up(fileno):
    with socket.socket(fileno=os.dup(fileno)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


async def watch(conn):
    """Raise as soon as this session does not lead any more, or that cannot be told."""
    while await ask(conn, "SELECT le_am_leader(%s, identity => %s)"):
        await readable(conn, 1)
    raise psycopg.OperationalError("this session does not lead any more")


async def lead(conn):
    """Wait to be elected, then do the job for as long as we lead."""
    cursor = await conn.execute("CALL le_campaign(%s, identity => %s)", (ELECTION, IDENTITY))
    (token,) = await cursor.fetchone()
    say("elected", token)
    job, watcher = asyncio.create_task(do_the_job(token)), asyncio.create_task(watch(conn))
    try:
        done, _ = await asyncio.wait({job, watcher}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what ended it
    finally:  # lost it, SIGTERM, or the job is done
        for task in (job, watcher):
            task.cancel()
            await asyncio.wait({task})
        if conn.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            try:
                await ask(conn, "SELECT le_resign(%s, identity => %s)")
            except psycopg.Error as error:  # to close the connection ends the term as well
                say("error", error)
        say("ousted", token)


async def stand():
    while True:
        try:
            conn = await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], **CONNECTION)
            try:
                while True:
                    await lead(conn)
                    await asyncio.sleep(0.5)  # the job was done: let others have a turn
            finally:
                await conn.close()
        except Exception as error:  # of the database or the job: hide nothing, and stand again
            say("error", str(error) or repr(error))
        await asyncio.sleep(0.5)


async def main():
    standing = asyncio.create_task(stand())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, standing.cancel)
    try:
        await standing
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    asyncio.run(main())
