// Command prove lets client processes elect and write through a real server while faults strike, and judges the
// histories that the clients have recorded: doc/proof.md.  tools/prove builds and starts it.
//
//	prove run -dir DIRECTORY [-seconds N] [-seed N] [-faults "NAME ..."] [-patroni] [-crowd N] [-until-caught]
//	          [-keep-all] [-loop NAME -program FILE]
//	prove judge DIRECTORY...	judges kept histories again, each in a directory of its own
//	prove client FILE		is a client process, started by run
//	prove published FILE	is a client process that runs a published loop, started by run
package main

import (
	"fmt"
	"os"

	"leader_election/proof/client"
	"leader_election/proof/published"
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: prove run|judge|client|published ARGUMENT..."))
	}
	switch command := os.Args[1]; command {
	case "run":
		os.Exit(run(os.Args[2:]))
	case "judge":
		os.Exit(judgeAgain(os.Args[2:]))
	case "client":
		fail(client.Main(os.Args[2]))
	case "published":
		fail(published.Main(os.Args[2]))
	default:
		fail(fmt.Errorf("unknown command %s", command))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(2)
	}
}
