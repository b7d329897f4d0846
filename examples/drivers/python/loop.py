"""A worker by bare SQL: DATABASE_URL=postgres://... python3 loop.py"""
import contextlib, os, signal, socket, threading, time
import psycopg

DSN = os.environ["DATABASE_URL"]
IDENTITY = f"{socket.gethostname()}:{os.getpid()}"  # differs from copy to copy

def ask(conn, deadline, statement, *arguments):
    """Return the first column of the answer.  Cut the connection at the deadline."""
    with socket.socket(fileno=os.dup(conn.fileno())) as line:
        timer = threading.Timer(deadline, line.shutdown, (socket.SHUT_RDWR,))
        try:
            timer.start()
            return conn.execute(statement, arguments).fetchone()[0]
        finally:
            timer.cancel()

def step(token):
    """Do one step of the job, shorter than 5 s.  The token fences what it writes."""
    with psycopg.connect(DSN, connect_timeout=5) as conn:  # or one of a pool
        conn.execute("SELECT le_assert_leader('scheduler', %s)", (token,))
        conn.execute("INSERT INTO work_done (token) VALUES (%s)", (token,))

def lead(conn):
    campaign = "CALL le_campaign('scheduler', '300 s', identity => %s, heartbeat => '15 s')"
    while (token := ask(conn, 305, campaign, IDENTITY)) is None:
        pass  # not elected within 300 s
    while ask(conn, 5, "SELECT le_heartbeat('scheduler')"):
        step(token)
        time.sleep(1)

signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
with contextlib.suppress(KeyboardInterrupt):
    while True:
        try:
            with psycopg.connect(DSN, autocommit=True, connect_timeout=5) as conn:
                try:
                    lead(conn)
                finally:
                    with contextlib.suppress(psycopg.Error):
                        ask(conn, 5, "SELECT le_resign('scheduler', identity => %s)", IDENTITY)
        except psycopg.Error as error:
            print(error, flush=True)
        time.sleep(1)
