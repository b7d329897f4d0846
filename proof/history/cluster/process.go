package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stat returns the state and the parent of a process, and the time of its start; ok is false if it has gone.  A zombie
// has gone.
func stat(pid int) (state string, ppid int, started string, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, "", false
	}
	// the second field, in parentheses, can contain spaces
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", 0, "", false
	}
	ppid, err = strconv.Atoi(fields[1])
	return fields[0], ppid, fields[19], err == nil
}

func parent(pid int) int {
	_, ppid, _, _ := stat(pid)
	return ppid
}

// children returns the processes that a process has started.
func children(pid int) []int {
	if pid == 0 {
		return nil
	}
	var found []int
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		child, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if _, ppid, _, ok := stat(child); ok && ppid == pid {
			found = append(found, child)
		}
	}
	return found
}

// spawn starts a program that dies with this one.  What it says goes to the log.  done is closed when it has ended.
func spawn(cmd *exec.Cmd, log string) (done chan struct{}, err error) {
	out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	// a process group of its own, so that a Ctrl-C of the run does not shut it down
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return done, nil
}

func kill(pid int) {
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func resume(pid int) {
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

func waitGone(pid int) {
	for {
		if _, _, _, ok := stat(pid); !ok {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Suspend stops a process by SIGSTOP for a while.  A process that ends meanwhile is no error.
func Suspend(ctx context.Context, pid int, d time.Duration) error {
	_, _, started, _ := stat(pid)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	// another process can have the number by now
	if _, _, now, _ := stat(pid); now == started {
		resume(pid)
	}
	return nil
}
