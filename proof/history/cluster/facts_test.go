package cluster

import (
	"slices"
	"strings"
	"testing"
)

func TestCommitRecords(t *testing.T) {
	const head = "rmgr: Transaction len (rec/tot):     46/    46, "
	for line, want := range map[string][]string{
		"tx:        735, lsn: 0/01A8, desc: COMMIT 2026-11-22 19:00:00.000000 UTC":              {"735"},
		"tx: 735, lsn: 0/01A8, desc: COMMIT 2026-11-22 19:00 UTC; subxacts: 736 739":            {"735", "736", "739"},
		"tx: 0, lsn: 0/01A8, desc: COMMIT_PREPARED 740: 2026-11-22 19:00:00 UTC; subxacts: 741": {"740", "741"},
		"tx: 742, lsn: 0/01A8, desc: ABORT 2026-11-22 19:00:00.000000 UTC":                      nil,
		"tx: 743, lsn: 0/01A8, desc: ABORT_PREPARED 744: 2026-11-22 19:00:00.000000 UTC":        nil,
		"tx: 745, lsn: 0/01A8, desc: PREPARE gid client-1-1: 2026-11-22 19:00:00.000000 UTC":    nil,
		"tx: 746, lsn: 0/01A8, desc: INVALIDATION ; inval msgs: catcache 55 relcache 16384":     nil,
	} {
		places, err := readCommits(strings.NewReader(head + line + "\n"))
		if err != nil {
			t.Error(err)
		}
		var got []string
		for xid := range places {
			got = append(got, xid)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %v", line, got)
		}
	}
}

func TestLogAccidents(t *testing.T) {
	c := &Cluster{crashed: map[int]bool{12: true}}
	for line, want := range map[string]bool{
		"2026-11-22 19:00:00.000 UTC [7] XX000 ERROR:  could not open relation with OID 16389":                            true,
		"2026-11-22 19:00:00.000 UTC [7] XX000 STATEMENT:  SELECT 1":                                                      false,
		"2026-11-22 19:00:00.000 UTC [7] LE001 ERROR:  this session does not lead election \"x\"":                         false,
		"2026-11-22 19:00:00.000 UTC [7] 00000 LOG:  server process (PID 12) was terminated by signal 9: Killed":          false,
		"2026-11-22 19:00:00.000 UTC [7] 00000 LOG:  server process (PID 13) was terminated by signal 9: Killed":          true,
		"2026-11-22 19:00:00.000 UTC [7] 00000 LOG:  server process (PID 12) was terminated by signal 11: Segmentati":     true,
		"2026-11-22 19:00:00.000 UTC [7] 00000 LOG:  server process (PID 13) exited with exit code 2":                     true,
		"2026-11-22 19:00:00.000 UTC [7] 00000 LOG:  background worker \"x\" (PID 13) exited with exit code 1":            false,
		"2026-11-22 19:00:00.000 UTC [7] 01000 WARNING:  relcache reference leak: relation \"le_leases\" not closed":      true,
		"2026-11-22 19:00:00.000 UTC [7] XX002 WARNING:  cannot reindex invalid index \"i_ccnew\" concurrently, skipping": false,
		"2026-11-22 19:00:00.000 UTC [7] XX002 WARNING:  cannot reindex invalid index \"i_ccold\" concurrently, skipping": false,
		"TRAP: FailedAssertion(\"x\", File: \"y.c\", Line: 1, PID: 7)":                                                    true,
		"2026-11-22 19:00:00.000 UTC [7] 57P01 FATAL:  terminating connection due to administrator command":               false,
	} {
		if got := c.isAccident(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
