package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Sizes say how much is measured.
type Sizes struct {
	Rounds    int           // of the throughput, of which the median counts
	Clients   []int         // in the throughput
	Seconds   time.Duration // each, in the throughput
	Handovers int           // by resignation
	Polled    int           // by resignation, of candidates that poll
	Kills     int           // where a term ends with its connection
	Expiries  int           // kills where a term ends with its ttl
	Defaults  int           // the same, with the default ttl
	Line      int           // candidates that wait
	Idle      time.Duration // in which they only wait
	Patience  time.Duration // for all of them to have led
}

var full = Sizes{Rounds: 3, Clients: []int{1, 8, 64}, Seconds: 2 * time.Second, Handovers: 100, Polled: 40, Kills: 50,
	Expiries: 20, Defaults: 10, Line: 1000, Idle: 5 * time.Second, Patience: time.Minute}

var trial = Sizes{Rounds: 1, Clients: []int{1, 8}, Seconds: 300 * time.Millisecond, Handovers: 10, Polled: 5, Kills: 5,
	Expiries: 2, Line: 50, Idle: time.Second, Patience: 5 * time.Second}

// Rates are those of one operation with a number of clients, in one round.
type Rates struct {
	Clients  int
	Rate     float64 // per second
	P50, P99 float64 // µs
	CPU      float64 // µs of the server's, each
}

// Times are milliseconds.
type Times struct {
	TTL   float64 // s
	Times []float64
}

// A Line is what becomes of many candidates that wait for one election.
type Line struct {
	Waiting int
	Idle    float64 // of a core, of the server's
	Led     int     // have had their turn
	Total   float64 // ms, until all of these had
	Gaps    []float64
}

// Figures are what was measured of a peer.
type Figures struct {
	Name, Title string
	Skipped     string             `json:",omitempty"`
	Throughput  map[string][]Rates // by the operation: "pair", "renewal"
	Resigned    *Times             `json:",omitempty"`
	Killed      *Times             `json:",omitempty"`
	KilledLate  *Times             `json:",omitempty"` // with the default ttl
	Line        *Line              `json:",omitempty"`
}

func say(format string, args ...any) { fmt.Printf("== "+format+"\n", args...) }

// measure measures the peers with these names, by default all, and writes the figures to a file.
func measure(servers *Servers, sizes Sizes, only []string, out string) error {
	for _, name := range only {
		if findPeer(name) == nil {
			return fmt.Errorf("no peer is called %s", name)
		}
	}
	var chosen []*Peer
	var names []string
	for _, peer := range peers {
		if len(only) == 0 || slices.Contains(only, peer.Name) {
			chosen = append(chosen, peer)
			if !slices.Contains(names, peer.Server) {
				names = append(names, peer.Server)
			}
		}
	}
	free := idle()
	say("%.0f %% of the processors' time is free", 100*free)
	if err := servers.Start(names); err != nil {
		return err
	}
	all := map[*Peer]*Figures{}
	report := struct {
		Quick    bool
		Started  time.Time
		Idle     float64 // the part of the processors' time that was free before
		Versions map[string]string
		Sizes    Sizes
		Peers    []*Figures
	}{sizes.Rounds == 1, time.Now(), free, servers.Version, sizes, nil}
	var there []*Peer
	for _, peer := range chosen {
		figures := &Figures{Name: peer.Name, Title: peer.Title, Skipped: servers.Skipped[peer.Server],
			Throughput: map[string][]Rates{}}
		all[peer], report.Peers = figures, append(report.Peers, figures)
		if figures.Skipped == "" {
			there = append(there, peer)
		}
	}

	m := measurement{servers, sizes, all}
	for _, step := range []func([]*Peer) error{m.throughput, m.resignations, m.kills, m.lines} {
		if err := step(there); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(report, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// idle returns the part of the processors' time that is free, in two seconds.
func idle() float64 {
	read := func() (free, all float64) {
		text, _ := os.ReadFile("/proc/stat")
		line, _, _ := strings.Cut(string(text), "\n")
		for i, field := range strings.Fields(line)[1:9] { // what follows is part of these
			ticks, _ := strconv.ParseFloat(field, 64)
			all += ticks
			if i == 3 || i == 4 { // idle, and waiting for a disk
				free += ticks
			}
		}
		return free, all
	}
	free, all := read()
	time.Sleep(2 * time.Second)
	freeLater, allLater := read()
	return (freeLater - free) / (allLater - all)
}

type measurement struct {
	servers *Servers
	sizes   Sizes
	figures map[*Peer]*Figures
}

// open connects a candidate.  What takes longer than a minute has failed.
func (m measurement) open(peer *Peer, election string, ttl time.Duration) (Candidate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	candidate, err := peer.Open(ctx, m.servers, election, ttl)
	if err != nil {
		err = fmt.Errorf("%s: connecting: %w", peer.Name, err)
	}
	return candidate, err
}

// openAll connects a number of candidates, for elections by their number.
func (m measurement) openAll(peer *Peer, count int, ttl time.Duration, election func(int) string) ([]Candidate, error) {
	candidates := make([]Candidate, count)
	err := eachOf(count, 16, func(i int) (err error) {
		candidates[i], err = m.open(peer, election(i), ttl)
		return err
	})
	if err != nil {
		closeAll(candidates)
		return nil, err
	}
	return candidates, nil
}

func closeAll(candidates []Candidate) {
	_ = eachOf(len(candidates), 64, func(i int) error {
		if candidates[i] != nil {
			candidates[i].Close()
		}
		return nil
	})
}

// eachOf calls a function with the numbers below count, so many at a time, and returns the first error.
func eachOf(count, atATime int, do func(int) error) error {
	var group sync.WaitGroup
	failed := make(chan error, count)
	room := make(chan struct{}, atATime)
	for i := range count {
		room <- struct{}{}
		group.Add(1)
		go func() {
			defer group.Done()
			if err := do(i); err != nil {
				failed <- err
			}
			<-room
		}()
	}
	group.Wait()
	close(failed)
	return <-failed
}

// throughput measures pairs of taking and resigning, and renewals, of clients that each have an election.  What is not
// measured comes first, because ZooKeeper's server is slow until its code is compiled.
func (m measurement) throughput(peers []*Peer) error {
	for _, peer := range peers {
		for _, operation := range []string{"pair", "renewal"} {
			if _, err := m.rate(peer, operation, m.sizes.Clients[len(m.sizes.Clients)-1]); err != nil {
				return fmt.Errorf("%s, %s: %w", peer.Name, operation, err)
			}
		}
	}
	for round := range m.sizes.Rounds {
		for _, clients := range m.sizes.Clients {
			for _, operation := range []string{"pair", "renewal"} {
				for _, peer := range peers {
					rates, err := m.rate(peer, operation, clients)
					if err != nil {
						return fmt.Errorf("%s, %s: %w", peer.Name, operation, err)
					}
					say("round %d, %s, %d clients, %s: %.0f/s", round+1, operation, clients, peer.Name, rates.Rate)
					m.figures[peer].Throughput[operation] = append(m.figures[peer].Throughput[operation], rates)
				}
			}
		}
	}
	return nil
}

// rate has clients take and resign, or renew, each its own election.
func (m measurement) rate(peer *Peer, operation string, clients int) (Rates, error) {
	ctx := context.Background()
	rates := Rates{Clients: clients}
	candidates, err := m.openAll(peer, clients, peer.DefaultTTL, func(i int) string {
		return fmt.Sprintf("%s-own-%d", peer.Name, i)
	})
	if err != nil {
		return rates, err
	}
	defer closeAll(candidates)
	pair := func(one Candidate) error {
		if err := one.Take(ctx); err != nil {
			return err
		}
		return one.Resign(ctx)
	}
	do := pair
	err = eachOf(clients, clients, func(i int) error {
		if err := pair(candidates[i]); err != nil || operation == "pair" {
			return err
		}
		if err := candidates[i].Take(ctx); err != nil {
			return err
		}
		return candidates[i].Renew(ctx)
	})
	if err != nil {
		return rates, err
	}
	if operation == "renewal" {
		do = func(one Candidate) error { return one.Renew(ctx) }
	}
	runtime.GC()

	took := make([][]float64, clients)
	cpu, began := m.servers.CPU(peer.Server), time.Now()
	err = eachOf(clients, clients, func(i int) error {
		for last := began; last.Sub(began) < m.sizes.Seconds; {
			start := time.Now()
			if err := do(candidates[i]); err != nil {
				return err
			}
			last = time.Now()
			took[i] = append(took[i], float64(last.Sub(start))/float64(time.Microsecond))
		}
		return nil
	})
	lasted := time.Since(began)
	cpu = m.servers.CPU(peer.Server) - cpu
	if err != nil {
		return rates, err
	}
	if operation == "renewal" {
		if err := eachOf(clients, clients, func(i int) error { return candidates[i].Resign(ctx) }); err != nil {
			return rates, err
		}
	}
	all := slices.Concat(took...)
	rates.Rate = float64(len(all)) / lasted.Seconds()
	rates.P50, rates.P99 = quantile(all, 0.5), quantile(all, 0.99)
	rates.CPU = float64(cpu) / float64(time.Microsecond) / float64(len(all))
	return rates, nil
}

func quantile(values []float64, part float64) float64 {
	slices.Sort(values)
	return values[min(int(float64(len(values))*part), len(values)-1)]
}

func milliseconds(duration time.Duration) float64 {
	return float64(duration) / float64(time.Millisecond)
}

// settle lets a candidate that was just told to wait begin to wait.  It takes etcd up to 100 ms to have a new watch
// take part.  A candidate that polls may be at any point of its pause, and a leader at any point between two renewals.
func settle(poll, ttl time.Duration) {
	pause := 150 * time.Millisecond
	if more := max(poll, ttl/3); more > 0 {
		pause += rand.N(more)
	}
	time.Sleep(pause)
}

// keep renews until the context ends.
func keep(ctx context.Context, peer *Peer, candidate Candidate, ttl time.Duration) error {
	if !peer.ByHand {
		<-ctx.Done()
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(ttl / 3):
			if err := candidate.Renew(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// resignations measure from a resignation to the answer to the one candidate that waits.
func (m measurement) resignations(peers []*Peer) error {
	for _, peer := range peers {
		if peer.Throughput {
			continue
		}
		count := m.sizes.Handovers
		if peer.poll(peer.DefaultTTL) > 0 {
			count = m.sizes.Polled
		}
		times, err := m.resign(peer, count)
		if err != nil {
			return fmt.Errorf("%s, resignation: %w", peer.Name, err)
		}
		m.figures[peer].Resigned = &Times{peer.DefaultTTL.Seconds(), times}
		say("resignation, %s: median %.2f ms, p99 %.2f ms", peer.Name, quantile(slices.Clone(times), 0.5),
			quantile(slices.Clone(times), 0.99))
	}
	return nil
}

func (m measurement) resign(peer *Peer, count int) (times []float64, err error) {
	ttl := peer.DefaultTTL
	both, err := m.openAll(peer, 2, ttl, func(int) string { return peer.Name + "-resigned" })
	if err != nil {
		return nil, err
	}
	defer closeAll(both)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := both[0].Campaign(ctx); err != nil {
		return nil, err
	}
	for i := range count + 1 {
		leader, next := both[i%2], both[(i+1)%2]
		var led time.Time
		done := make(chan error, 1)
		go func() {
			err := next.Campaign(ctx)
			led = time.Now()
			done <- err
		}()
		settle(peer.poll(ttl), 0)
		began := time.Now()
		if err := leader.Resign(ctx); err != nil {
			return nil, err
		}
		if err := <-done; err != nil {
			return nil, err
		}
		if i > 0 { // the first is a warm-up
			times = append(times, milliseconds(led.Sub(began)))
		}
	}
	return times, both[(count+1)%2].Resign(ctx)
}

// kills measure from the SIGKILL of a leader's process to the answer to the one candidate that waits.  Where a term
// ends with its ttl, all peers wait at the same time, since they only wait.
func (m measurement) kills(peers []*Peer) error {
	var expiring []*Peer
	for _, peer := range peers {
		switch {
		case peer.Throughput:
		case peer.ShortTTL > 0:
			expiring = append(expiring, peer)
		default:
			times := &Times{}
			for range m.sizes.Kills {
				took, err := m.kill(peer, peer.Name+"-killed", 0)
				if err != nil {
					return fmt.Errorf("%s, kill: %w", peer.Name, err)
				}
				times.Times = append(times.Times, took)
			}
			m.figures[peer].Killed = times
			say("kill, %s: median %.2f ms", peer.Name, quantile(slices.Clone(times.Times), 0.5))
		}
	}
	var lock sync.Mutex
	atOnce := func(count int, ttl func(*Peer) time.Duration, add func(*Figures, float64, float64)) error {
		return eachOf(count*len(expiring), 64, func(i int) error {
			peer := expiring[i%len(expiring)]
			took, err := m.kill(peer, fmt.Sprintf("%s-expired-%d", peer.Name, i), ttl(peer))
			if err != nil {
				return fmt.Errorf("%s, kill: %w", peer.Name, err)
			}
			lock.Lock()
			defer lock.Unlock()
			add(m.figures[peer], ttl(peer).Seconds(), took)
			return nil
		})
	}
	err := atOnce(m.sizes.Expiries, func(peer *Peer) time.Duration { return peer.ShortTTL },
		func(figures *Figures, ttl, took float64) { figures.Killed = addTime(figures.Killed, ttl, took) })
	if err != nil {
		return err
	}
	err = atOnce(m.sizes.Defaults, func(peer *Peer) time.Duration { return peer.DefaultTTL },
		func(figures *Figures, ttl, took float64) { figures.KilledLate = addTime(figures.KilledLate, ttl, took) })
	if err != nil {
		return err
	}
	for _, peer := range expiring {
		if times := m.figures[peer].Killed; times != nil {
			say("kill, %s, ttl %g s: median %.0f ms", peer.Name, times.TTL, quantile(slices.Clone(times.Times), 0.5))
		}
	}
	return nil
}

func addTime(times *Times, ttl, took float64) *Times {
	if times == nil {
		times = &Times{TTL: ttl}
	}
	times.Times = append(times.Times, took)
	return times
}

// kill has a process lead and kills it.
func (m measurement) kill(peer *Peer, election string, ttl time.Duration) (float64, error) {
	waiter, err := m.open(peer, election, ttl)
	if err != nil {
		return 0, err
	}
	defer waiter.Close()
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	leader := exec.Command(program, "lead", peer.Name, election, ttl.String())
	leader.Stderr = os.Stderr
	answers, err := leader.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := leader.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = leader.Process.Kill()
		_ = leader.Wait()
	}()
	if line, err := bufio.NewReader(answers).ReadString('\n'); err != nil || line != "leads\n" {
		return 0, fmt.Errorf("the leader's process: %q, %w", line, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	var led time.Time
	go func() {
		err := waiter.Campaign(ctx)
		led = time.Now()
		done <- err
	}()
	settle(peer.poll(ttl), ttl)
	select {
	case <-done:
		return 0, fmt.Errorf("two leaders, or none: the candidate led before the leader was killed")
	default:
	}
	began := time.Now()
	if err := leader.Process.Signal(syscall.SIGKILL); err != nil {
		return 0, err
	}
	if err := <-done; err != nil {
		return 0, err
	}
	return milliseconds(led.Sub(began)), waiter.Resign(ctx)
}

// leadMain is a process that leads until it is killed, or its parent has gone.
func leadMain(args []string) error {
	if len(args) != 3 || findPeer(args[0]) == nil {
		return fmt.Errorf("usage: peers lead NAME ELECTION TTL")
	}
	peer := findPeer(args[0])
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	servers, err := serversOfParent()
	if err != nil {
		return err
	}
	ctx := context.Background()
	candidate, err := peer.Open(ctx, servers, args[1], ttl)
	if err != nil {
		return err
	}
	if err := candidate.Campaign(ctx); err != nil {
		return err
	}
	fmt.Println("leads")
	parent := os.Getppid()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		cancel()
	}()
	return keep(ctx, peer, candidate, ttl)
}

// lines have many candidates wait for one election, of which each resigns as soon as it leads.
func (m measurement) lines(peers []*Peer) error {
	for _, peer := range peers {
		if !peer.Waits {
			continue
		}
		line, err := m.line(peer)
		if err != nil {
			return fmt.Errorf("%s, line: %w", peer.Name, err)
		}
		m.figures[peer].Line = line
		say("line, %s: %.3f of a core idle, %d of %d in %.0f ms", peer.Name, line.Idle, line.Led, line.Waiting, line.Total)
	}
	return nil
}

func (m measurement) line(peer *Peer) (*Line, error) {
	ttl := peer.DefaultTTL
	candidates, err := m.openAll(peer, m.sizes.Line+1, ttl, func(int) string { return peer.Name + "-line" })
	if err != nil {
		return nil, err
	}
	defer closeAll(candidates)
	leader, others := candidates[0], candidates[1:]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := leader.Campaign(ctx); err != nil {
		return nil, err
	}
	type turn struct {
		at  time.Time
		err error
	}
	turns := make(chan turn, len(others))
	for _, one := range others {
		go func() {
			err := one.Campaign(ctx)
			at := time.Now()
			if err == nil {
				err = one.Resign(ctx)
			}
			turns <- turn{at, err}
		}()
	}
	m.awaitCalm(peer)
	line := &Line{Waiting: len(others)}
	cpu := m.servers.CPU(peer.Server)
	time.Sleep(m.sizes.Idle)
	line.Idle = (m.servers.CPU(peer.Server) - cpu).Seconds() / m.sizes.Idle.Seconds()

	began := time.Now()
	if err := leader.Resign(ctx); err != nil {
		return nil, err
	}
	times := []time.Time{began}
	for late := time.After(m.sizes.Patience); line.Led < len(others); {
		select {
		case turn := <-turns:
			if turn.err != nil {
				return nil, turn.err
			}
			line.Led++
			times = append(times, turn.at)
			continue
		case <-late:
		}
		break
	}
	slices.SortFunc(times, time.Time.Compare)
	for i := range times[1:] {
		line.Gaps = append(line.Gaps, milliseconds(times[i+1].Sub(times[i])))
	}
	line.Total = milliseconds(times[len(times)-1].Sub(began))
	return line, nil
}

// awaitCalm waits until all candidates have begun to wait: until the server has done next to nothing for two seconds,
// more than the second after which PostgreSQL looks for a deadlock; at most for a minute.
func (m measurement) awaitCalm(peer *Peer) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		cpu := m.servers.CPU(peer.Server)
		time.Sleep(2 * time.Second)
		if m.servers.CPU(peer.Server)-cpu < 300*time.Millisecond {
			return
		}
	}
}
