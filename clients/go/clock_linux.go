package leaderelection

import (
	"syscall"
	"time"
	"unsafe"
)

// now returns the time since the machine was started. It includes the time
// for which the machine was suspended, which [time.Since] leaves out.
func now() time.Duration {
	const clockBoottime = 7
	var t syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 { // a sandbox that does not know this clock
		return time.Since(start)
	}
	return time.Duration(t.Nano())
}
