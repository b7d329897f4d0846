package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// host is a network namespace for clients, which a process keeps.  Its link has two ends: sN, 10.94.N.1, in the
// namespace of the servers, and cN, 10.94.N.2.
//
// A link is cut by a wrong hardware address of the other end: frames are lost without a trace.  If an end were down,
// the kernel would tell the programs on its side.
type host struct {
	number int
	holder *exec.Cmd
}

// Directions of a link.
const (
	ToServer = 1 << iota
	ToClients
)

func serverAddress(n int) string {
	return fmt.Sprintf("10.94.%d.1", n)
}

func clientAddress(n int) string {
	return fmt.Sprintf("10.94.%d.2", n)
}

func hardwareAddress(n, end int) string {
	return fmt.Sprintf("02:94:00:00:%02x:%02x", n, end)
}

const noHardware = "02:94:00:00:00:00"

func ip(arguments ...string) error {
	return run(find("ip"), arguments...)
}

func (c *Cluster) addHosts() error {
	for n := 1; n <= Hosts; n++ {
		h, err := newHost(n)
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
		if err := h.connect(); err != nil {
			return err
		}
	}
	return nil
}

func newHost(n int) (*host, error) {
	holder := exec.Command("unshare", "--net", "sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := holder.Start(); err != nil {
		return nil, err
	}
	h := &host{number: n, holder: holder}
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	for range 1000 {
		theirs, err := os.Readlink(h.namespace())
		if err == nil && theirs != ours {
			return h, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	h.remove()
	return nil, errors.New("cannot make a network namespace")
}

func (h *host) namespace() string {
	return fmt.Sprintf("/proc/%d/ns/net", h.holder.Process.Pid)
}

// ip runs ip in the namespace of the clients.
func (h *host) ip(arguments ...string) error {
	return run("nsenter", append([]string{"--net=" + h.namespace(), find("ip")}, arguments...)...)
}

func (h *host) connect() error {
	n := h.number
	ours, theirs := fmt.Sprintf("s%d", n), fmt.Sprintf("c%d", n)
	for _, step := range []func() error{
		func() error {
			return ip("link", "add", ours, "address", hardwareAddress(n, 1), "type", "veth",
				"peer", "name", theirs, "address", hardwareAddress(n, 2), "netns", strconv.Itoa(h.holder.Process.Pid))
		},
		func() error { return ip("addr", "add", serverAddress(n)+"/24", "dev", ours) },
		func() error { return h.ip("addr", "add", clientAddress(n)+"/24", "dev", theirs) },
		func() error { return ip("link", "set", ours, "up") },
		func() error { return h.ip("link", "set", theirs, "up") },
		func() error { return h.ip("link", "set", "lo", "up") },
		func() error { return h.link(0) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// link mends the link, but for the directions in which it is cut.
func (h *host) link(cut int) error {
	toClients, toServer := hardwareAddress(h.number, 2), hardwareAddress(h.number, 1)
	if cut&ToClients != 0 {
		toClients = noHardware
	}
	if cut&ToServer != 0 {
		toServer = noHardware
	}
	return errors.Join(
		ip("neigh", "replace", clientAddress(h.number), "lladdr", toClients, "dev", fmt.Sprintf("s%d", h.number),
			"nud", "permanent"),
		h.ip("neigh", "replace", serverAddress(h.number), "lladdr", toServer, "dev", fmt.Sprintf("c%d", h.number),
			"nud", "permanent"))
}

func (h *host) remove() {
	_ = h.holder.Process.Kill()
	_ = h.holder.Wait()
}

// CommandInHost makes a command run in client namespace n, from 1.  It keeps its process.
func (c *Cluster) CommandInHost(n int, cmd *exec.Cmd) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	// /proc/self/exe would be nsenter
	program, err := filepath.EvalSymlinks(cmd.Path)
	if err != nil {
		return err
	}
	cmd.Args = append([]string{"nsenter", "--net=" + c.hosts[n-1].namespace(), program}, cmd.Args[1:]...)
	cmd.Path = nsenter
	return nil
}

// LinkDown cuts the link of client namespace n, from 1, in one or both directions.  Neither side is told.
func (c *Cluster) LinkDown(n, directions int) error {
	return c.hosts[n-1].link(directions)
}

// LinkUp mends the link of client namespace n, from 1.
func (c *Cluster) LinkUp(n int) error {
	return c.hosts[n-1].link(0)
}
