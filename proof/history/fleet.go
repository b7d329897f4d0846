package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"leader_election/proof/event"
)

// member is a client process and what it is started with.
type member struct {
	number  int
	command string // "client" or "published"
	config  func(incarnation int) any
	host    int // its network namespace; 0: that of the run

	incarnation int
	process     *exec.Cmd
	ended       chan struct{} // closed when the process has ended
}

// fleet is all client processes.
type fleet struct {
	dir    string
	log    *event.Log
	inHost func(n int, command *exec.Cmd) error

	mu      sync.Mutex
	members map[int]*member
}

// start starts the process of a member.
func (f *fleet) start(m *member) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[m.number] = m
	text, err := json.Marshal(m.config(m.incarnation))
	if err != nil {
		return err
	}
	file := filepath.Join(f.dir, fmt.Sprintf("client-%d.json", m.number))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	said, err := os.OpenFile(f.stderr(m.number), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer said.Close()
	process := exec.Command("/proc/self/exe", m.command, file)
	process.Stderr = said
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if m.host != 0 {
		if err := f.inHost(m.host, process); err != nil {
			return err
		}
	}
	if err := process.Start(); err != nil {
		return err
	}
	m.process, m.ended = process, make(chan struct{})
	go f.await(m, process, m.ended)
	return nil
}

func (f *fleet) stderr(n int) string {
	return filepath.Join(f.dir, fmt.Sprintf("client-%d.stderr", n))
}

// await reports a process that has failed; one that a signal has killed has not.
func (f *fleet) await(m *member, process *exec.Cmd, ended chan struct{}) {
	process.Wait()
	if process.ProcessState.ExitCode() > 0 && m.command == "client" {
		text, _ := os.ReadFile(f.stderr(m.number))
		f.log.Add(event.Record{Kind: event.Problem, Do: "client", Client: m.number,
			Message: fmt.Sprintf("%s: %s", process.ProcessState, text)})
	}
	close(ended)
}

func (m *member) runs() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// Pids returns the processes that run, by the number of the client.
func (f *fleet) Pids() map[int]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	pids := map[int]int{}
	for n, m := range f.members {
		if m.runs() {
			pids[n] = m.process.Process.Pid
		}
	}
	return pids
}

// Restart starts a client that was killed anew.
func (f *fleet) Restart(n int) error {
	f.mu.Lock()
	m := f.members[n]
	ended := m.ended
	f.mu.Unlock()
	<-ended
	f.mu.Lock()
	m.incarnation++
	f.mu.Unlock()
	return f.start(m)
}

// finish waits until all processes have ended by themselves.  Those that have not after the first time are asked to,
// and after the second time killed, which is a problem.
func (f *fleet) finish(patience, more time.Duration) {
	if f.gone(patience) {
		return
	}
	f.signal(syscall.SIGTERM)
	if f.gone(more) {
		return
	}
	for n := range f.Pids() {
		f.log.Add(event.Record{Kind: event.Problem, Do: "client", Client: n, Message: "the client does not end"})
	}
	f.signal(syscall.SIGKILL)
	f.gone(more)
}

func (f *fleet) signal(s syscall.Signal) {
	for _, pid := range f.Pids() {
		syscall.Kill(pid, s)
	}
}

// gone waits for the end of all processes, for at most the given time.
func (f *fleet) gone(patience time.Duration) bool {
	end := time.After(patience)
	f.mu.Lock()
	members := make([]*member, 0, len(f.members))
	for _, m := range f.members {
		members = append(members, m)
	}
	f.mu.Unlock()
	for _, m := range members {
		select {
		case <-m.ended:
		case <-end:
			return false
		}
	}
	return true
}
