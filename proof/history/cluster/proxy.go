package cluster

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy forwards TCP connections to a target.  While it is frozen, it forwards nothing, and connections stay.
type Proxy struct {
	listener net.Listener

	mu          sync.Mutex
	target      string // no target: connections are closed
	connections map[net.Conn]bool
	thawed      chan struct{} // nil unless frozen; closed by Thaw
}

func newProxy(port int) (*Proxy, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, connections: map[net.Conn]bool{}}
	go p.accept()
	return p, nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.add(client)
		go p.serve(client)
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.remove(client)
	p.passable()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	if target == "" {
		return
	}
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	defer p.remove(server)
	if !p.add(server) || !p.has(client) {
		return
	}
	done := make(chan bool, 2)
	go p.forward(server, client, done)
	go p.forward(client, server, done)
	<-done
}

// forward sends on what comes, until either side closes.
func (p *Proxy) forward(to, from net.Conn, done chan<- bool) {
	defer func() { done <- true }()
	buffer := make([]byte, 32*1024)
	for {
		n, err := from.Read(buffer)
		p.passable()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passable returns when the proxy is not frozen.
func (p *Proxy) passable() {
	for {
		p.mu.Lock()
		thawed := p.thawed
		p.mu.Unlock()
		if thawed == nil {
			return
		}
		<-thawed
	}
}

func (p *Proxy) add(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections[conn] = true
	return true
}

func (p *Proxy) has(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections[conn]
}

func (p *Proxy) remove(conn net.Conn) {
	p.mu.Lock()
	delete(p.connections, conn)
	p.mu.Unlock()
	_ = conn.Close()
}

func (p *Proxy) setTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Freeze stops all forwarding.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thawed == nil {
		p.thawed = make(chan struct{})
	}
}

// Thaw lets a frozen proxy go on.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thawed != nil {
		close(p.thawed)
		p.thawed = nil
	}
}

// Cut resets all connections.  What was read and not yet sent on is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.connections {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
	clear(p.connections)
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.Cut()
	p.Thaw()
}
