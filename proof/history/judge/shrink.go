package judge

import (
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// shrink returns the fewest operations, more or less, that no order explains: each of them is needed for that.
func shrink(model porcupine.Model, operations []porcupine.Operation) []porcupine.Operation {
	const each = 100 * time.Millisecond
	core := slices.Clone(operations)
	for i := len(core) - 1; i >= 0; i-- {
		fewer := slices.Delete(slices.Clone(core), i, i+1)
		// an operation that begins a term explains others: those cannot do without it
		if core[i].Input.(step).explains() {
			continue
		}
		if porcupine.CheckOperationsTimeout(model, fewer, each) == porcupine.Illegal {
			core = fewer
		}
	}
	return core
}

// explains says whether the step only allows others, and forbids none.
func (s step) explains() bool {
	return s.what != leads && s.what != denied && s.what != isVacant
}

// story tells the operations in the order of their calls.
func story(operations []porcupine.Operation) string {
	var lines []string
	for _, o := range operations {
		if s := o.Input.(step); s.call != nil {
			lines = append(lines, s.String())
		}
	}
	return strings.Join(lines, "; ")
}
