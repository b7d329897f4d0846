// Package published runs one of the loops of examples/published as a client process, and records what it believes.
package published

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"leader_election/proof/event"
)

// Config says which loop is run, and how.
type Config struct {
	Number   int
	Dir      string
	Loop     string   // "poll", "pool" or "upsert"
	Program  string   // path of the built program
	Address  string   // its DATABASE_URL
	Election string   // for "poll", the number of the lock
	Env      []string // such as INTERVAL=1s of "poll", TERM_LENGTH=2s of "upsert"
}

// reader is set in the environment of the process that reads what the loop prints.
const reader = "PROOF_PUBLISHED_READER"

// Main becomes the program of the loop, so that signals to the process are signals to the loop.  A second process reads
// what it prints, until it ends.
func Main(configFile string) error {
	text, err := os.ReadFile(configFile)
	if err != nil {
		return err
	}
	var config Config
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	log, err := event.Open(filepath.Join(config.Dir, fmt.Sprintf("client-%d.jsonl", config.Number)))
	if err != nil {
		return err
	}
	if os.Getenv(reader) != "" {
		return read(config, log, os.Stdin)
	}
	log.Add(event.Record{Kind: event.Note, Client: config.Number, Message: config.Loop + " begins"})
	if err := startReader(configFile); err != nil {
		return err
	}
	arguments := []string{config.Program, config.Election, fmt.Sprintf("client-%d", config.Number)}
	return syscall.Exec(config.Program, arguments, append(append(os.Environ(), "DATABASE_URL="+config.Address),
		config.Env...))
}

// startReader makes what this process will print the input of another one.
func startReader(configFile string) error {
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	process := exec.Command("/proc/self/exe", os.Args[1], configFile)
	process.Env = append(os.Environ(), reader+"=1")
	process.Stdin, process.Stderr = from, os.Stderr
	if err := process.Start(); err != nil {
		return err
	}
	return unix.Dup2(int(to.Fd()), 1)
}

// read records what the loop prints, and its end.
func read(config Config, log *event.Log, input io.Reader) error {
	signal.Ignore(syscall.SIGTERM)
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		if r, ok := translate(config, lines.Text()); ok {
			log.Add(r)
		}
	}
	log.Add(event.Record{Kind: event.Closed, Client: config.Number})
	return lines.Err()
}

// translate returns the record of a line "TIME IDENTITY EVENT TEXT".  Its time is that of the wall clock, and not used.
func translate(config Config, line string) (event.Record, bool) {
	words := strings.SplitN(line, " ", 4)
	if len(words) < 3 {
		return event.Record{}, false
	}
	r := event.Record{Client: config.Number, Election: config.Loop + " " + config.Election, Identity: words[1]}
	switch words[2] {
	case "elected":
		r.Kind, r.Do, r.Outcome = event.Return, event.Published, event.True
	case "ousted":
		r.Kind, r.Do, r.Outcome = event.Return, event.Published, event.False
	default:
		r.Kind, r.Message = event.Note, strings.Join(words[2:], " ")
	}
	return r, true
}
