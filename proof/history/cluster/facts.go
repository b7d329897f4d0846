package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/event"
)

// Facts records all rows: those of servers that have ended, and those of the present primary.  Call it once, after all
// clients have ended.
//
// Order is the place of a row in the commit order of its server.  A promoted server has rows from before its promotion,
// too: they have the Phase Survived, and no Order.  Guard is "assert" for the table guarded, "trigger" for triggered,
// and "once" for jobs, whose Message is the due time.
func (c *Cluster) Facts(ctx context.Context, log *event.Log) error {
	c.gathering.Wait()
	if err := c.gatherRows(ctx, c.present()); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.gathered {
		log.Add(r)
	}
	c.gathered = nil
	return nil
}

func (c *Cluster) gather(records ...event.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gathered = append(c.gathered, records...)
}

// gatherRows takes the rows of a running server.  No one else writes there.
func (c *Cluster) gatherRows(ctx context.Context, s *server) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	var last string
	err = conn.QueryRow(ctx, `SELECT pg_current_xact_id()::xid::text FROM pg_logical_emit_message(true, 'proof', 'end')`).
		Scan(&last)
	if err != nil {
		return err
	}
	commits, err := s.commits()
	if err != nil {
		return err
	}
	if commits[last] == 0 {
		return errors.New("the WAL does not have the last commit")
	}
	rows, survived, err := s.rows(ctx, conn, commits)
	if err != nil {
		return err
	}
	if s.number == 1 && len(survived) > 0 {
		return fmt.Errorf("the WAL does not have the commits of %d rows", len(survived))
	}
	c.gather(append(survived, rows...)...)
	return nil
}

// rows returns the rows of the given commits in this order, and those that have survived a promotion.
func (s *server) rows(
	ctx context.Context, conn *pgx.Conn, commits map[string]int,
) (ordered, survived []event.Record, err error) {
	rows, err := conn.Query(ctx, `
		SELECT xmin::text, id, 'assert', election, token, client, op, coalesce(mark, ''), '' FROM guarded
		UNION ALL
		SELECT xmin::text, id, 'trigger', election, token, client, op, coalesce(mark, ''), '' FROM triggered
		UNION ALL
		SELECT xmin::text, row_number() OVER (ORDER BY ctid), 'once', election, token, client, op, '', due::text FROM jobs
		ORDER BY 2`)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	committed := map[int][]event.Record{}
	for rows.Next() {
		r := event.Record{Kind: event.Row, Server: s.number}
		var xid string
		var id int64
		if err := rows.Scan(&xid, &id, &r.Guard, &r.Election, &r.Token, &r.Client, &r.Op, &r.Mark, &r.Message); err != nil {
			return nil, nil, err
		}
		if place := commits[xid]; place > 0 {
			committed[place] = append(committed[place], r)
		} else {
			r.Phase = event.Survived
			survived = append(survived, r)
		}
	}
	return inOrder(committed, len(commits)), survived, rows.Err()
}

func inOrder(committed map[int][]event.Record, places int) []event.Record {
	var ordered []event.Record
	for place := 1; place <= places; place++ {
		for _, r := range committed[place] {
			r.Order = int64(len(ordered) + 1)
			ordered = append(ordered, r)
		}
	}
	return ordered
}

// The transaction of a commit record stands in the record's head, except that of a prepared transaction.
var commitRecord = regexp.MustCompile(`tx: +(\d+), .* desc: COMMIT(?:_PREPARED)? (?:(\d+): )?`)

var subtransactions = regexp.MustCompile(`; subxacts:((?: \d+)+)`)

// commits returns the place in the commit order of each transaction that has committed on this server, from 1.
func (s *server) commits() (map[string]int, error) {
	cmd := exec.Command("pg_waldump", "-p", filepath.Join(s.dir, "pg_wal"), "-t", strconv.Itoa(s.timeline),
		"-s", formatLSN(s.origin), "-r", "Transaction")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	places, err := readCommits(out)
	// it fails at the end of the WAL in any case
	_ = cmd.Wait()
	return places, err
}

func readCommits(out io.Reader) (map[string]int, error) {
	places := map[string]int{}
	place := 0
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		match := commitRecord.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		place++
		xid := match[1]
		if match[2] != "" {
			xid = match[2]
		}
		places[xid] = place
		if match := subtransactions.FindStringSubmatch(lines.Text()); match != nil {
			for _, xid := range strings.Fields(match[1]) {
				places[xid] = place
			}
		}
	}
	return places, lines.Err()
}

func parseLSN(text string) (uint64, error) {
	var high, low uint64
	_, err := fmt.Sscanf(text, "%X/%X", &high, &low)
	return high<<32 | low, err
}

func formatLSN(lsn uint64) string {
	return fmt.Sprintf("%X/%X", lsn>>32, lsn&0xffffffff)
}

// switchPoint returns where a timeline began, by its history file.
func switchPoint(dir string, timeline int) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "pg_wal", fmt.Sprintf("%08X.history", timeline)))
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 2 {
		return "", fmt.Errorf("the history of timeline %d says nothing", timeline)
	}
	return fields[1], nil
}
