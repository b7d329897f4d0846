"""Who leads? The long poll: psycopg 3. Prints `SECONDS IDENTITY observed TOKEN LEADER` at each change.

Use it to follow the leader (its identity, and the value that it has published, such as its address), as a proxy or a
dashboard does. It costs a connection that waits, and no polling. While nobody leads, TOKEN is negative and LEADER is -.

    DATABASE_URL=postgres://me@127.0.0.1:5432/app python3 observe.py ELECTION IDENTITY
"""
import os
import signal
import sys
import time

import psycopg

ELECTION, IDENTITY = sys.argv[1:3]

# autocommit: le_observe waits without a snapshot only outside a transaction block.
CONNECTION = dict(
    autocommit=True, connect_timeout=5,
    keepalives_idle=1, keepalives_interval=1, keepalives_count=5, tcp_user_timeout=5000,
)


def say(event, text):
    print(f"{time.time():.3f} {IDENTITY} {event} {' '.join(str(text).split())}\n", end="", flush=True)


def observe(conn: psycopg.Connection, known):
    """Hand in all that the last call returned; the answer comes when that has changed, or after 30 s."""
    token, leader, value = known
    return conn.execute(
        "CALL le_observe(%s, %s, '30 s', %s, %s, %s)", (ELECTION, token, token, leader, value)
    ).fetchone()


def main():
    known = (None, None, None)
    while True:
        try:
            with psycopg.connect(os.environ["DATABASE_URL"], **CONNECTION) as conn:
                while True:
                    state = observe(conn, known)
                    if state != known:
                        known = state
                        token, leader, _value = state
                        say("observed", f"{token} {leader or '-'}")
        except psycopg.Error as error:
            say("error", error)
        time.sleep(0.5)


def on_sigterm(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt  # for which psycopg cancels the statement that runs


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except KeyboardInterrupt:
        pass
