package cluster

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func (c *Cluster) clockFile() string {
	return filepath.Join(c.options.Dir, "clock")
}

// clockEnvironment lets a server take its wall clock from a file, and leaves its monotonic clock as it is:
// t/set_clock.c, which tools/prove builds beside this program.
func (c *Cluster) clockEnvironment() ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	library := filepath.Join(filepath.Dir(program), "clock.so")
	if _, err := os.Stat(library); err != nil {
		return nil, fmt.Errorf("the wall clock cannot be set: %w", err)
	}
	return []string{"LD_PRELOAD=" + library, "CLOCK_OFFSET=" + c.clockFile()}, nil
}

// MaxClockOffset is how far the servers' wall clock is off at most, while clients run: promoted servers make up for a day.
const MaxClockOffset = 6 * time.Hour

// SetClock sets how far the servers' wall clock is off.
//
// The servers have mapped the file, so it is written in place, in one piece.
func (c *Cluster) SetClock(offset time.Duration) error {
	file, err := os.OpenFile(c.clockFile(), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset.Nanoseconds())), 0)
	return err
}
