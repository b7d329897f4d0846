package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// Servers are the servers of the peers, each on a port of its own of 127.0.0.1.
type Servers struct {
	Address map[string]string // by the server's name; what is not here cannot be had
	Version map[string]string
	Skipped map[string]string // why

	dir    string
	consul string // its program
	pids   map[string]int
	done   map[string]chan struct{}
}

// The clients that are killed learn the addresses from this variable.
const addresses = "PEERS_ADDRESSES"

var startServer = map[string]func(*Servers, string) error{
	"postgresql": (*Servers).startPostgres,
	"etcd":       (*Servers).startEtcd,
	"zookeeper":  (*Servers).startZooKeeper,
	"consul":     (*Servers).startConsul,
	"redis":      (*Servers).startRedis,
	"redis-aof":  (*Servers).startRedis,
}

var errNotThere = errors.New("cannot be had")

// Start starts the servers with these names.
func (s *Servers) Start(names []string) error {
	// a server dies with the thread that has started it
	runtime.LockOSThread()
	s.Address, s.Version, s.Skipped = map[string]string{}, map[string]string{}, map[string]string{}
	s.pids, s.done = map[string]int{}, map[string]chan struct{}{}
	for _, name := range names {
		dir := filepath.Join(s.dir, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		err := startServer[name](s, dir)
		if errors.Is(err, errNotThere) || errors.Is(err, exec.ErrNotFound) {
			delete(s.Address, name)
			s.Skipped[name] = err.Error()
			say("skipped: %s: %v", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		say("%s %s", name, s.Version[name])
	}
	text, err := json.Marshal(s.Address)
	if err != nil {
		return err
	}
	return os.Setenv(addresses, string(text))
}

// serversOfParent are those that the process which has started this one knows.
func serversOfParent() (*Servers, error) {
	servers := &Servers{}
	return servers, json.Unmarshal([]byte(os.Getenv(addresses)), &servers.Address)
}

// Stop ends the servers.
func (s *Servers) Stop() {
	for name, pid := range s.pids {
		signal := syscall.SIGKILL
		if name == "postgresql" {
			signal = syscall.SIGQUIT // immediate, with its children
		}
		_ = syscall.Kill(pid, signal)
		<-s.done[name]
	}
}

// program finds a program, also where only root looks for it.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
			return "", fmt.Errorf("%w: no program %s", errNotThere, name)
		}
	}
	return path, nil
}

// spawn starts a server, which dies with this process.
func (s *Servers) spawn(name, dir string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pids[name], s.done[name] = cmd.Process.Pid, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(s.done[name])
	}()
	return nil
}

// await waits until a server answers.
func (s *Servers) await(name string, answers func(ctx context.Context) error) error {
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := answers(ctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.done[name]:
			return fmt.Errorf("has ended: %s", s.lastLines(name))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("does not answer: %w: %s", err, s.lastLines(name))
		}
	}
}

func (s *Servers) lastLines(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.dir, name+".log"))
	return string(text[max(0, len(text)-1000):])
}

// freePorts returns ports of 127.0.0.1 that were free a moment ago.
func freePorts(count int) ([]string, error) {
	var ports []string
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

func output(args ...string) string {
	text, _ := exec.Command(args[0], args[1:]...).Output()
	return string(text)
}

// after returns the word after the first of some text.
func after(text, word string) string {
	_, rest, _ := strings.Cut(text, word)
	if fields := strings.Fields(rest); len(fields) > 0 {
		return strings.TrimLeft(fields[0], "v")
	}
	return ""
}

// startPostgres starts a server with the defaults for durability.
func (s *Servers) startPostgres(dir string) error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if out, err := exec.Command("initdb", "-A", "trust", "-U", "postgres", "-D", data).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	err = s.spawn("postgresql", dir, "postgres", "-D", data, "-p", ports[0], "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories="+dir, "-c", "max_connections=1100")
	if err != nil {
		return err
	}
	address := fmt.Sprintf("host=127.0.0.1 port=%s user=postgres dbname=postgres sslmode=disable", ports[0])
	s.Address["postgresql"] = address
	return s.await("postgresql", func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, createPeers); err != nil {
			return err
		}
		var version string
		err = conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
		s.Version["postgresql"], _, _ = strings.Cut(version, " ")
		return err
	})
}

func (s *Servers) startEtcd(dir string) error {
	etcd, err := program("etcd")
	if err != nil {
		return err
	}
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	s.Version["etcd"] = after(output(etcd, "--version"), "etcd Version: ")
	s.Address["etcd"] = "127.0.0.1:" + ports[0]
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	err = s.spawn("etcd", dir, etcd, "--data-dir", filepath.Join(dir, "data"), "--logger", "zap", "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err != nil {
		return err
	}
	return s.await("etcd", func(ctx context.Context) error {
		client, err := connectEtcd(ctx, s)
		if err != nil {
			return err
		}
		defer client.Close()
		_, err = client.Get(ctx, "any")
		return err
	})
}

const zooCfg = `tickTime=2000
dataDir=%s
clientPort=%s
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
`

func (s *Servers) startZooKeeper(dir string) error {
	java, err := program("java")
	if err != nil {
		return err
	}
	jars, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar")
	if len(jars) == 0 {
		return fmt.Errorf("%w: no /usr/share/java/zookeeper-*.jar", errNotThere)
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	config := filepath.Join(dir, "zoo.cfg")
	text := fmt.Sprintf(zooCfg, filepath.Join(dir, "data"), ports[0])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	s.Version["zookeeper"] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jars[0]), "zookeeper-"), ".jar")
	s.Address["zookeeper"] = "127.0.0.1:" + ports[0]
	err = s.spawn("zookeeper", dir, java, "-cp", jars[0],
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	if err != nil {
		return err
	}
	return s.await("zookeeper", func(ctx context.Context) error {
		candidate, err := openZooKeeper(ctx, s, "", 10*time.Second)
		if err != nil {
			return err
		}
		defer candidate.Close()
		_, _, err = candidate.(*zookeeper).conn.Get("/")
		if errors.Is(err, zk.ErrNoNode) {
			err = nil
		}
		return err
	})
}

func (s *Servers) startConsul(dir string) error {
	if s.consul == "" {
		return fmt.Errorf("%w: its program was not built", errNotThere)
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	s.Version["consul"] = after(output(s.consul, "version"), "Consul ")
	s.Address["consul"] = "127.0.0.1:" + ports[0]
	// its limit of 200 connections from one address is none of what is compared
	err = s.spawn("consul", dir, s.consul, "agent", "-server", "-bootstrap-expect=1", "-ui=false",
		"-data-dir", filepath.Join(dir, "data"), "-node=peer", "-bind=127.0.0.1", "-client=127.0.0.1",
		"-http-port", ports[0], "-server-port", ports[1], "-serf-lan-port", ports[2],
		"-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1", "-log-level=warn",
		"-hcl", "disable_update_check = true", "-hcl", "limits { http_max_conns_per_client = 5000 }")
	if err != nil {
		return err
	}
	return s.await("consul", func(ctx context.Context) error {
		client, transport, err := connectConsul(s)
		if err != nil {
			return err
		}
		defer transport.CloseIdleConnections()
		leader, err := client.Status().Leader()
		if err == nil && leader == "" {
			err = errors.New("it has no leader")
		}
		return err
	})
}

// startRedis starts one that writes a snapshot now and then, as by default, or one that makes each write durable.
func (s *Servers) startRedis(dir string) error {
	name := filepath.Base(dir)
	server, err := program("redis-server")
	if err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	s.Version[name] = after(output(server, "--version"), "v=")
	s.Address[name] = "127.0.0.1:" + ports[0]
	args := []string{server, "--port", ports[0], "--bind", "127.0.0.1", "--dir", dir}
	if name == "redis-aof" {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	if err := s.spawn(name, dir, args...); err != nil {
		return err
	}
	return s.await(name, func(ctx context.Context) error {
		client := redis.NewClient(&redis.Options{Addr: s.Address[name]})
		defer client.Close()
		return client.Ping(ctx).Err()
	})
}

// CPU returns how long a server's processes have run.
func (s *Servers) CPU(name string) time.Duration {
	parents := map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		// the second field, in parentheses, can contain spaces
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			parents[parent] = append(parents[parent], pid)
		}
	}
	var sum time.Duration
	for pids := []int{s.pids[name]}; len(pids) > 0; {
		pid := pids[0]
		pids = append(pids[1:], parents[pid]...)
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			if fields := strings.Fields(string(text)); len(fields) > 0 {
				ran, _ := strconv.ParseInt(fields[0], 10, 64)
				sum += time.Duration(ran)
			}
		}
	}
	return sum
}
