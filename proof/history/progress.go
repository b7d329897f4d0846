package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"leader_election/proof/event"
)

// How often a line says that the work goes on.
const progressInterval = 10 * time.Second

// progress counts what the histories of all rounds have so far.
type progress struct {
	begin                     time.Time
	calls, faults, violations int
	terms                     map[int64]bool   // their tokens
	read                      map[string]int64 // how much of each file
}

func newProgress() *progress {
	return &progress{begin: time.Now(), terms: map[int64]bool{}, read: map[string]int64{}}
}

// show prints a line in each interval, until the context ends.
func (p *progress) show(ctx context.Context, dir string) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.readAll(dir)
			fmt.Printf("%.0f s: %d calls, %d terms, %d faults, %d violations\n", time.Since(p.begin).Seconds(), p.calls,
				len(p.terms), p.faults, p.violations)
		}
	}
}

// readAll reads what has been added to the histories of a round.
func (p *progress) readAll(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	for _, file := range files {
		if opened, err := os.Open(file); err == nil {
			p.readOn(opened)
			opened.Close()
		}
	}
}

// readOn counts the whole lines of a file that were not read before.
func (p *progress) readOn(file *os.File) {
	info, err := file.Stat()
	if err != nil {
		return
	}
	text := make([]byte, info.Size()-p.read[file.Name()])
	if n, _ := file.ReadAt(text, p.read[file.Name()]); n < len(text) {
		return
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	p.read[file.Name()] += int64(len(text))
	for line := range bytes.Lines(text) {
		var r event.Record
		if json.Unmarshal(line, &r) == nil {
			p.count(r)
		}
	}
}

func (p *progress) count(r event.Record) {
	switch {
	case r.Kind == event.Call:
		p.calls++
	case r.Kind == event.Fault && r.Phase != "end":
		p.faults++
	case r.Kind == event.Return && r.Outcome == event.True && r.Token != 0:
		p.terms[r.Token] = true
	}
}
