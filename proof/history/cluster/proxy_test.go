package cluster

import (
	"io"
	"net"
	"testing"
	"time"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	return listener
}

func start(t *testing.T) *Proxy {
	p, err := newProxy(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	p.setTarget(echo(t).Addr().String())
	return p
}

func dial(t *testing.T, p *Proxy) net.Conn {
	conn, err := net.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// answer sends a byte, and returns what reading the answer says.
func answer(conn net.Conn, patience time.Duration) error {
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	return hear(conn, patience)
}

func hear(conn net.Conn, patience time.Duration) error {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, err := conn.Read(make([]byte, 1))
	return err
}

func TestFrozenProxy(t *testing.T) {
	p := start(t)
	conn := dial(t, p)
	if err := answer(conn, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Freeze()
	late := dial(t, p)
	for _, conn := range []net.Conn{conn, late} {
		if timeout, ok := answer(conn, 100*time.Millisecond).(net.Error); !ok || !timeout.Timeout() {
			t.Error("a frozen proxy forwards or closes")
		}
	}
	p.Thaw()
	for _, conn := range []net.Conn{conn, late} {
		if err := hear(conn, 10*time.Second); err != nil {
			t.Error(err)
		}
	}
}

func TestCutProxy(t *testing.T) {
	p := start(t)
	conn, idle := dial(t, p), dial(t, p)
	for _, conn := range []net.Conn{conn, idle} {
		if err := answer(conn, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	p.Freeze()
	if err := answer(conn, 50*time.Millisecond); err == nil {
		t.Fatal("a frozen proxy forwards")
	}
	p.Cut()
	p.Thaw()
	for _, conn := range []net.Conn{conn, idle} {
		if err := hear(conn, 10*time.Second); err == nil {
			t.Error("the connection is not cut, or what was on its way has arrived")
		} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Error("the connection is open")
		}
	}
	if err := answer(dial(t, p), 10*time.Second); err != nil {
		t.Error(err)
	}
}
