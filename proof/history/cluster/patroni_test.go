package cluster

import "testing"

func TestSettings(t *testing.T) {
	got := settings("\nlog_line_prefix = '%m = '\n# no = setting\nfsync = off\nunix_socket_directories = ''\n")
	if len(got) != 3 || got["log_line_prefix"] != "%m = " || got["fsync"] != "off" || got["unix_socket_directories"] != "" {
		t.Errorf("%q", got)
	}
}
