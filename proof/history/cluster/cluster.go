// Package cluster runs the servers of a run, and the ways between them and the clients: a primary with an asynchronous
// standby, a TCP proxy, PgBouncer, and network namespaces with links that can be cut.
//
// The servers run with fsync off.  No fault of a run loses the kernel's page cache: a server is ended by signals only.
//
// The search path is "public, le": the schema le exists, and the extension can be moved there and back.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/event"
)

// MaxTTL is leader_election.max_ttl on all servers.
const MaxTTL = 5 * time.Second

// DeadPeerTimeout is leader_election.dead_peer_timeout on all servers.
const DeadPeerTimeout = 3 * time.Second

// Hosts is the number of client namespaces, if there are links.
const Hosts = 2

// The ports of the run's namespace.  Server N listens on serverPort + N.
const (
	proxyPort       = 6000
	replicationPort = 6001
	poolerPort      = 6432
	serverPort      = 5432
	alonePort       = 7000
)

// ErrNoStandby says that there is no standby to promote: it is being built, or the cluster has none.
var ErrNoStandby = errors.New("no standby is ready")

// Options says what the cluster has.
type Options struct {
	Dir     string // for the servers' files and logs; it exists
	Seed    uint64 // chooses settings of the servers that clients do not see
	Assert  bool   // Start fails unless the server has assertions
	Standby bool   // an asynchronous standby, which can be promoted
	Pooler  bool   // PgBouncer
	Link    bool   // client namespaces, with a link each
	Clock   bool   // the servers' wall clock can be set
	Patroni bool   // Patroni promotes the standby, and starts the servers; without Link and Clock
	Crowd   int    // how many sessions there are beside those of the clients
	Script  string // of the SQL edition, in place of the extension
}

// Cluster is the servers of a run, and the ways to them.
type Cluster struct {
	Proxy *Proxy // the clients' way to the present primary

	options     Options
	settings    string // those that the seed has chosen
	running     context.Context
	end         context.CancelFunc
	gathering   sync.WaitGroup // of the rows of servers that have ended
	building    sync.WaitGroup // of standbys
	replication *Proxy         // the standby's way to the primary
	pooler      *pooler
	hosts       []*host
	etcd        *exec.Cmd // for Patroni
	members     []*member

	changing sync.Mutex // one change of the servers at a time

	mu       sync.Mutex // protects what follows
	primary  *server
	standby  *server   // nil until it can be promoted
	servers  []*server // all of them, also those that have gone
	gathered []event.Record
	crashed  map[int]bool // backends that CrashBackend has ended
}

// Primary is the content of the file that names the present primary.
type Primary struct {
	Host   string `json:"host"`
	Port   int    `json:"port"`
	Server int    `json:"server"`
}

// Addresses says where clients find the primary.  All of them log in as the user postgres, to the database postgres
// except through PgBouncer, without a password and without TLS.  On each way, current_setting('proof.server') is the
// number of the server.
type Addresses struct {
	File    string   // a Primary, in JSON; it is replaced at each promotion
	Proxy   string   // host:port of the proxy, which stays
	Pooler  string   // host:port of PgBouncer, which stays; its databases are session and transaction
	Members string   // what finds the primary among the members under Patroni
	Links   []string // such files for the client namespaces 1, 2, …
}

// Start makes a cluster.  The context is that of the start; Stop ends the cluster.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c := &Cluster{options: options, crashed: map[int]bool{}}
	c.running, c.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := c.SetClock(0); err != nil {
		return err
	}
	c.chooseSettings()
	if c.options.Patroni {
		if err := c.startEtcd(); err != nil {
			return err
		}
	}
	first, err := c.newServer(1)
	if err != nil {
		return err
	}
	if err := c.startFirst(ctx, first); err != nil {
		return err
	}
	if err := c.createObjects(ctx, first); err != nil {
		return err
	}
	if c.Proxy, err = newProxy(proxyPort); err != nil {
		return err
	}
	if c.replication, err = newProxy(replicationPort); err != nil {
		return err
	}
	if c.options.Pooler {
		if c.pooler, err = newPooler(c.options.Dir); err != nil {
			return err
		}
	}
	if c.options.Link {
		if err := c.addHosts(); err != nil {
			return err
		}
	}
	if err := c.lead(first); err != nil {
		return err
	}
	if c.options.Standby {
		return c.addStandby(ctx, 2)
	}
	return nil
}

func (c *Cluster) startFirst(ctx context.Context, s *server) error {
	if s.member != nil {
		return s.becomePrimary(ctx)
	}
	if err := s.initialize(c.configuration()); err != nil {
		return err
	}
	return s.start(ctx)
}

// loopbackUp brings up the loopback interface of a new network namespace.
func loopbackUp() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil || lo.Flags&net.FlagUp != 0 {
		return err
	}
	return ip("link", "set", "lo", "up")
}

// chooseSettings lets documented settings that change no guarantee differ between runs.
func (c *Cluster) chooseSettings() {
	rng := rand.New(rand.NewPCG(c.options.Seed, 0x636c7573746572))
	choose := func(name string, values ...string) {
		c.settings += fmt.Sprintf("%s = %s\n", name, values[rng.IntN(len(values))])
	}
	choose("leader_election.max_tracked", "100", "5000")
	choose("hot_standby_feedback", "on", "on", "off")
	choose("max_wal_size", "64MB", "1GB")
	choose("synchronous_commit", "on", "on", "local")
	choose("wal_writer_delay", "200ms", "10s")
}

func (c *Cluster) configuration() string {
	return fmt.Sprintf(`
listen_addresses = '*'
unix_socket_directories = ''
max_connections = %d
superuser_reserved_connections = 10
max_prepared_transactions = 20
max_locks_per_transaction = 10
wal_level = logical
max_wal_senders = 10
max_replication_slots = 10
# rows are put in commit order by the WAL, which must stay until then
wal_keep_size = 100GB
checkpoint_timeout = 30s
fsync = off
hot_standby = on
wal_retrieve_retry_interval = 200ms
wal_sender_timeout = 0
wal_receiver_timeout = 0
restart_after_crash = on
client_connection_check_interval = 500ms
tcp_keepalives_idle = 2
tcp_keepalives_interval = 1
tcp_keepalives_count = 3
tcp_user_timeout = 5000
autovacuum_naptime = 1s
timezone = 'UTC'
log_timezone = 'UTC'
search_path = 'public, le'
log_line_prefix = '%%m [%%p] %%e '
log_min_messages = warning
log_checkpoints = off
log_statement = none
leader_election.max_ttl = '%dms'
leader_election.dead_peer_timeout = '%dms'
%s`, 150+2*c.options.Crowd, MaxTTL.Milliseconds(), DeadPeerTimeout.Milliseconds(), c.settings)
}

func (c *Cluster) createObjects(ctx context.Context, s *server) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if c.options.Assert {
		var assertions string
		if err := conn.QueryRow(ctx, "SHOW debug_assertions").Scan(&assertions); err != nil {
			return err
		}
		if assertions != "on" {
			return errors.New("the server has no assertions")
		}
	}
	if err := s.noteOrigin(ctx, conn); err != nil {
		return err
	}
	install := []string{"CREATE EXTENSION leader_election", "CREATE SCHEMA le"}
	if c.options.Script != "" {
		script, err := os.ReadFile(c.options.Script)
		if err != nil {
			return err
		}
		if _, err := conn.PgConn().Exec(ctx, string(script)).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", c.options.Script, err)
		}
		install = []string{fmt.Sprintf("UPDATE le_settings SET max_ttl = '%d ms'", MaxTTL.Milliseconds())}
	}
	for _, statement := range append(install,
		`CREATE TABLE guarded (id bigint GENERATED ALWAYS AS IDENTITY, election text, token bigint, client int, op bigint,
			mark text)`,
		`CREATE TABLE triggered (id bigint GENERATED ALWAYS AS IDENTITY, election text, token bigint, client int, op bigint,
			mark text)`,
		"CREATE TABLE jobs (election text, due timestamptz, token bigint, client int, op bigint)",
	) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if c.options.Script != "" {
		return nil
	}
	// most of the first block, so that the clients soon need the next one
	rng := rand.New(rand.NewPCG(c.options.Seed, 0x746f6b656e73))
	return useTokens(ctx, conn, 700+rng.IntN(tokenBlock-700))
}

func useTokens(ctx context.Context, conn *pgx.Conn, tokens int) error {
	_, err := conn.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN
		FOR i IN 1 .. %d LOOP
			PERFORM le_try_become_leader('tokens'), le_resign('tokens');
		END LOOP;
	END $$`, tokens))
	return err
}

// tokenBlock is how many tokens the extension draws at a time.
const tokenBlock = 1024

// EnsureTriggers guards the table triggered for elections by name: a row of one of them fires le_guard for it.  Call it
// before clients write there, as CREATE TRIGGER waits for transactions that have.
func (c *Cluster) EnsureTriggers(ctx context.Context, elections ...string) error {
	conn, err := c.Control(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for _, election := range elections {
		name := "'" + strings.ReplaceAll(election, "'", "''") + "'"
		_, err := conn.Exec(ctx, fmt.Sprintf(`CREATE OR REPLACE TRIGGER %s BEFORE INSERT ON triggered
			FOR EACH ROW WHEN (NEW.election = %s) EXECUTE FUNCTION le_guard(%s)`,
			pgx.Identifier{"guard " + election}.Sanitize(), name, name))
		if err != nil {
			return err
		}
	}
	return nil
}

// lead shows clients the way to a server.
func (c *Cluster) lead(s *server) error {
	c.mu.Lock()
	c.primary = s
	c.mu.Unlock()
	address := fmt.Sprintf("127.0.0.1:%d", s.port)
	c.replication.setTarget(address)
	c.Proxy.setTarget(address)
	primary := Primary{Host: "127.0.0.1", Port: s.port, Server: s.number}
	err := primary.write(c.Addresses().File)
	for n, file := range c.Addresses().Links {
		primary.Host = serverAddress(n + 1)
		err = errors.Join(err, primary.write(file))
	}
	if c.pooler != nil {
		err = errors.Join(err, c.pooler.setTarget(s.port))
	}
	return err
}

func (p Primary) write(file string) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return replaceFile(file, string(text)+"\n")
}

// Addresses returns where clients find the primary.
func (c *Cluster) Addresses() Addresses {
	a := Addresses{
		File:  filepath.Join(c.options.Dir, "primary.json"),
		Proxy: fmt.Sprintf("127.0.0.1:%d", proxyPort),
	}
	if c.options.Patroni {
		a.Members = fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d target_session_attrs=read-write",
			serverPort+1, serverPort+2)
	}
	if c.pooler != nil {
		a.Pooler = fmt.Sprintf("127.0.0.1:%d", poolerPort)
	}
	for n := range c.hosts {
		a.Links = append(a.Links, filepath.Join(c.options.Dir, fmt.Sprintf("primary-link-%d.json", n+1)))
	}
	return a
}

// FirstAddress returns host:port of the first server, which stays the primary if there is no standby.
func (c *Cluster) FirstAddress() string {
	return fmt.Sprintf("127.0.0.1:%d", c.all()[0].port)
}

// Control connects to the present primary, past everything that can be cut.  The caller closes the connection.
func (c *Cluster) Control(ctx context.Context) (*pgx.Conn, error) {
	return c.present().connect(ctx)
}

// Server returns the number of the present primary.
func (c *Cluster) Server() int {
	return c.present().number
}

// Options returns what the cluster has.
func (c *Cluster) Options() Options {
	return c.options
}

func (c *Cluster) present() *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.primary
}

func (c *Cluster) all() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*server(nil), c.servers...)
}

// Mode says how a server is stopped.
type Mode int

const (
	Fast      Mode = iota // sessions are terminated, and a checkpoint is made
	Immediate             // recovery follows
)

// Restart stops the primary and starts it again.
func (c *Cluster) Restart(ctx context.Context, mode Mode) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	s := c.present()
	s.stop(mode)
	return s.start(ctx)
}

// CrashBackend ends a backend of the primary by SIGKILL, and waits until the server has recovered.
func (c *Cluster) CrashBackend(ctx context.Context, pid int) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	s := c.present()
	if parent(pid) != s.pid() {
		return fmt.Errorf("process %d has gone", pid)
	}
	c.mu.Lock()
	c.crashed[pid] = true
	c.mu.Unlock()
	kill(pid)
	waitGone(pid)
	// the postmaster begins the recovery a moment later
	pause(ctx, 100*time.Millisecond)
	if err := s.ready(ctx); err == nil || ctx.Err() != nil {
		return err
	}
	s.stop(Immediate)
	return s.start(ctx)
}

// StopBackend stops a backend of the primary for a while by SIGSTOP.
func (c *Cluster) StopBackend(ctx context.Context, pid int, d time.Duration) error {
	if parent(pid) != c.present().pid() {
		return fmt.Errorf("process %d has gone", pid)
	}
	return Suspend(ctx, pid, d)
}

// Heal takes back what the nemesis may have left: links are up, the proxy forwards, the primary accepts
// connections.  The wall clock stays as it is: going back would delay the server's timeouts.
func (c *Cluster) Heal(ctx context.Context) error {
	for n := range c.hosts {
		if err := c.LinkUp(n + 1); err != nil {
			return err
		}
	}
	c.Proxy.Thaw()
	c.changing.Lock()
	defer c.changing.Unlock()
	s := c.present()
	for _, pid := range children(s.pid()) {
		resume(pid)
	}
	return s.ready(ctx)
}

// Stop ends the cluster with all of its processes.  The files stay.
func (c *Cluster) Stop() error {
	c.end()
	c.gathering.Wait()
	c.building.Wait()
	c.changing.Lock()
	defer c.changing.Unlock()
	for _, m := range c.members {
		m.kill()
	}
	for _, s := range c.all() {
		s.killAll()
	}
	if c.etcd != nil && c.etcd.Process != nil {
		_ = c.etcd.Process.Kill()
	}
	if c.pooler != nil {
		c.pooler.stop()
	}
	for _, h := range c.hosts {
		h.remove()
	}
	for _, p := range []*Proxy{c.Proxy, c.replication} {
		if p != nil {
			p.close()
		}
	}
	return nil
}

// replaceFile writes a file so that a reader finds either the old or the new content.
func replaceFile(name, content string) error {
	if err := os.WriteFile(name+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// run runs a program to its end.
func run(name string, arguments ...string) error {
	out, err := exec.Command(name, arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, out)
	}
	return nil
}

// find returns the path of a program, which can be one for administrators.
func find(name string) string {
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return name
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
