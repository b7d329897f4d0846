package lepgx_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// frame makes a program of a part of the README.
const frame = `package main

import (
	"context"
	"database/sql"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	leaderelection "github.com/leader-election/leader_election/clients/go"
	"github.com/leader-election/leader_election/clients/go/lepgx"
)

var (
	pool  *pgxpool.Pool
	sqlDB *sql.DB
	db    = lepgx.Pool(pool)
	ctx   = context.Background()
	_     pgx.Tx
	_     = time.Now
	_     = log.Print
	_     leaderelection.Options
)

func main() {
BODY
}
`

// TestReadme compiles the programs of the README, and runs the first one.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles programs, and -short is set")
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(programs) < 5 {
		t.Fatalf("%d programs", len(programs))
	}
	for i, program := range programs {
		text := program[1]
		if !strings.HasPrefix(text, "package main") {
			text = regexp.MustCompile(`(?m)^leaderelection\.Options`).ReplaceAllString(text, "_ = leaderelection.Options")
			text = strings.Replace(text, "job := ", "_ = ", 1)
			text = strings.Replace(frame, "BODY", text, 1)
		}
		folder := t.TempDir()
		source, binary := filepath.Join(folder, "main.go"), filepath.Join(folder, "program")
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s\n%s", err, out, text)
		}
		if i > 0 || os.Getenv("DATABASE_URL") == "" {
			continue
		}
		command := exec.Command(binary)
		var out bytes.Buffer
		command.Stdout, command.Stderr = &out, &out
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := command.Wait(); err != nil || !strings.Contains(out.String(), "a step of the job, with token") {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}
