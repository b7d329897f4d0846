// Command peers measures leader_election beside other ways to elect a leader, each by its ordinary Go client, on
// servers of its own.  tools/bench-peers builds and starts it.
//
//	peers run -dir DIRECTORY -out FILE [-quick] [-only "NAME ..."] [-consul FILE]
//		starts the servers with their data in the directory, and writes the figures to the file as JSON
//	peers lead NAME ELECTION TTL
//		is a leader's process, started by run in order to be killed
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: peers run|lead ARGUMENT..."))
	}
	switch command := os.Args[1]; command {
	case "run":
		fail(runMain(os.Args[2:]))
	case "lead":
		fail(leadMain(os.Args[2:]))
	default:
		fail(fmt.Errorf("unknown command %s", command))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func runMain(args []string) error {
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	dir := flags.String("dir", "", "where the servers have their data")
	out := flags.String("out", "", "the file for the figures")
	quick := flags.Bool("quick", false, "measure little, as a trial")
	only := flags.String("only", "", "only the peers with these names")
	consul := flags.String("consul", "", "the program of Consul; none means that it is skipped")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *out == "" || flags.NArg() != 0 {
		return fmt.Errorf("usage: peers run -dir DIRECTORY -out FILE [-quick] [-only NAMES] [-consul FILE]")
	}
	sizes := full
	if *quick {
		sizes = trial
	}
	servers := &Servers{dir: *dir, consul: *consul}
	defer servers.Stop()
	return measure(servers, sizes, strings.Fields(*only), *out)
}
