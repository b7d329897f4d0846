// Package event has the records of a history: what each client called and was answered, the faults, and the facts that
// the coordinator found at the end.
package event

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Now returns the machine's monotonic clock in nanoseconds.  All processes of the machine share it, and setting the wall
// clock does not change it.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// Kinds of records.
const (
	Call    = "call"    // a client is about to send a call
	Return  = "return"  // its answer has arrived
	Connect = "connect" // a client has a new session (Session, Pid, Server)
	Closed  = "closed"  // the client knows that its session has ended, or has ended it
	Fault   = "fault"   // the nemesis: Do, Target, Phase
	Note    = "note"    // what else has happened: Message, and Do if it is about a fault
	Row     = "row"     // a committed row, in commit order (Order), of Server
	Problem = "problem" // a fact that is a violation by itself: Do is the check, Message the finding
)

// What a call does.  The comment names the function of the extension, and how a true answer shows.
const (
	Try       = "try"       // le_try_become_leader, then le_token in the same statement: Token if true
	Wait      = "wait"      // le_become_leader, with or without a timeout
	Campaign  = "campaign"  // CALL le_campaign: Token, or no token after the timeout
	Many      = "many"      // CALL le_campaign for Elections: Token and Election in the return
	TryXact   = "try_xact"  // le_try_become_leader_xact
	WaitXact  = "wait_xact" // le_become_leader_xact
	Lease     = "lease"     // le_lease with TTL (not a renewal); or CALL le_campaign with a ttl (Waits)
	Renew     = "renew"     // le_renew, or le_lease with its token: true if the lease still runs
	Resign    = "resign"    // le_resign, with Token for a lease
	Heartbeat = "heartbeat" // le_heartbeat, on the leading session or with Token on another
	Am        = "am"        // le_am_leader
	End       = "end"       // COMMIT or ROLLBACK of a transaction that leads in transaction scope
	Depose    = "depose"    // le_depose
	Write     = "write"     // a guarded transaction as a whole: BEGIN, le_assert_leader or le_once or trigger, INSERT, COMMIT
	Look      = "look"      // le_leader(name): Token and Identity of the leader shown, or none
	Observe   = "observe"   // CALL le_observe: After is the version passed; Version and Token are returned, no Token for a vacancy
	Discard   = "discard"   // DISCARD ALL, or pg_advisory_unlock_all(), on the session
	Published = "published" // one of the published loops believes that it begins (Outcome true) or ends (false) to lead
)

// Faults.  The judge knows which calls each of them can hold up; a fault that it does not know can hold up all.
const (
	KillClient       = "kill client" // a client process is killed, and started anew
	StopClient       = "stop client" // a client process is stopped for a while
	StopBackend      = "stop backend"
	TerminateBackend = "terminate backend"
	CancelBackend    = "cancel backend"
	KillBackend      = "kill backend" // SIGKILL: the server restarts
	CrashServer      = "crash server" // an immediate shutdown, and a start
	RestartServer    = "restart server"
	PromoteStandby   = "promote standby" // the old server ends
	CutLink          = "cut link"
	FreezeProxy      = "freeze proxy" // it forwards nothing for a while
	CutProxy         = "cut proxy"    // it closes its connections
	RestartPooler    = "restart pooler"
	StopPooler       = "stop pooler" // SIGSTOP, for a while
	SetClock         = "set clock"   // of all servers
	FillLockTable    = "fill lock table"
	AlterExtension   = "alter extension"
	Declare          = "declare"
	Vacuum           = "vacuum"
	DropExtension    = "drop extension" // and create it again
	UpgradeScript    = "upgrade script" // of the SQL edition: run it again
)

// Outcomes of a call.
const (
	True    = "true"    // it returned true or a token, or has committed
	False   = "false"   // it returned false or no token: nothing has changed
	Failed  = "failed"  // an error of the server, after which nothing of the call is in effect (SQLState)
	Unknown = "unknown" // the connection was lost, or the answer does not tell whether it took effect
)

// Marks.
const (
	First = "first" // a guarded row: the first of its term
	Done  = "done"  // in the return of a Write: le_once has said that the job, of the time in Message, is done
	Final = "final" // a bid of the final phase
	Crowd = "crowd" // a bid of a session that holds nothing, one of hundreds that wait for the same election
	Cross = "cross" // a bid of a session that leads the election for which the bid of the other session waits
)

// EditionIs begins the note of an edition other than the C extension.
const EditionIs = "edition "

// FaultsEnd is the note that no fault is active any more.
const FaultsEnd = "faults end"

// Survived is the phase of a row that a promoted server has from its predecessor.
const Survived = "survived"

// Scopes of a term.
const (
	Session     = "session"
	Transaction = "transaction"
	ByLease     = "lease"
)

// Record is one line of a history.  Fields that do not apply are empty.
type Record struct {
	At      int64  `json:"at"` // Now()
	Kind    string `json:"kind"`
	Client  int    `json:"client,omitempty"`  // number of the client, from 1; 0: the coordinator
	Session int    `json:"session,omitempty"` // number of the connection within the client, from 1
	Op      int64  `json:"op,omitempty"`      // number of the call within the client, the same in its return
	Do      string `json:"do,omitempty"`

	Election  string   `json:"election,omitempty"` // its name
	Elections []string `json:"elections,omitempty"`
	Scope     string   `json:"scope,omitempty"` // of the bid, or of the term that the call is about
	Identity  string   `json:"identity,omitempty"`
	Token     int64    `json:"token,omitempty"` // in a call: the term that it is about; in a return: the term won or seen
	After     int64    `json:"after,omitempty"`
	Version   int64    `json:"version,omitempty"`
	TTL       int64    `json:"ttl,omitempty"`       // nanoseconds
	Beat      int64    `json:"beat,omitempty"`      // nanoseconds of the heartbeat; 0: none
	Timeout   int64    `json:"timeout,omitempty"`   // nanoseconds; 0: none
	Waits     bool     `json:"waits,omitempty"`     // does the bid wait?
	Isolation string   `json:"isolation,omitempty"` // "read committed", "repeatable read", "serializable"
	Prepared  bool     `json:"prepared,omitempty"`  // by PREPARE TRANSACTION and COMMIT PREPARED
	Guard     string   `json:"guard,omitempty"`     // "assert", "trigger", "once"
	Sent      int64    `json:"sent,omitempty"`      // in the return of a Write: when COMMIT or PREPARE was sent
	Mark      string   `json:"mark,omitempty"`      // of guarded rows and of bids

	Outcome  string `json:"outcome,omitempty"`
	SQLState string `json:"sqlstate,omitempty"`
	Message  string `json:"message,omitempty"`

	Pid    int    `json:"pid,omitempty"`    // backend process, from pg_backend_pid()
	Server int    `json:"server,omitempty"` // number of the server, from 1; each promotion adds one
	Target string `json:"target,omitempty"`
	Phase  string `json:"phase,omitempty"` // of a fault: "begin", "end", or "" for one at a moment
	Order  int64  `json:"order,omitempty"` // place of a row in the commit order of its server
}

// Log appends records to a file.  Each record is one write, so that a process that is killed leaves whole lines.
type Log struct {
	mu   sync.Mutex
	file *os.File
}

// Open opens the file of a history, and makes it if need be.
func Open(name string) (*Log, error) {
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &Log{file: file}, nil
}

// Add writes a record, with the present time unless it has one, and returns that time.
func (l *Log) Add(r Record) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.At == 0 {
		r.At = Now()
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("cannot record the history: %v", err))
	}
	return r.At
}

// Read returns the records of a file.  A last line without its end is left out.
func Read(name string) ([]Record, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var records []Record
	for lines := bufio.NewReaderSize(file, 1<<16); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			return nil, err
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		records = append(records, r)
	}
}
