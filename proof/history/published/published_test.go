package published

import (
	"testing"

	"leader_election/proof/event"
)

func TestTranslate(t *testing.T) {
	config := Config{Number: 7, Loop: "poll", Election: "12"}
	for line, want := range map[string]event.Record{
		"1700000000.123 client-7 elected 0":     {Kind: event.Return, Do: event.Published, Outcome: event.True},
		"1700000000.123 client-7 ousted 0":      {Kind: event.Return, Do: event.Published, Outcome: event.False},
		"1700000000.123 client-7 error no luck": {Kind: event.Note, Message: "error no luck"},
	} {
		want.Client, want.Election, want.Identity = 7, "poll 12", "client-7"
		got, ok := translate(config, line)
		if !ok || got.Kind != want.Kind || got.Do != want.Do || got.Outcome != want.Outcome ||
			got.Message != want.Message || got.Election != want.Election || got.Identity != want.Identity {
			t.Errorf("%s: %+v", line, got)
		}
	}
	if _, ok := translate(config, "panic: no"); ok {
		t.Error("a line of another kind is a record")
	}
}
