package drivers

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	leaderelection "github.com/leader-election/leader_election/clients/go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func measured(pool *pgxpool.Pool, election string, to prometheus.Registerer) (*leaderelection.Elector, error) {
	to = prometheus.WrapRegistererWith(prometheus.Labels{"election": election}, to)
	lengths := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "leader_election_term_seconds",
		Help:    "Lengths of terms",
		Buckets: []float64{1, 10, 60, 600, 3600, 86400},
	}, []string{"reason"})
	var began time.Time
	elector, err := leaderelection.New(pool, election, &leaderelection.Options{
		OnElected: func(*leaderelection.Term) { began = time.Now() },
		OnOusted: func(_ *leaderelection.Term, why leaderelection.Reason) {
			lengths.WithLabelValues(string(why)).Observe(time.Since(began).Seconds())
		},
	})
	if err != nil {
		return nil, err
	}
	leading := prometheus.GaugeOpts{Name: "leader_election_leading", Help: "1 while this process leads"}
	to.MustRegister(lengths, prometheus.NewGaugeFunc(leading, func() float64 {
		if elector.Health() == leaderelection.HealthLeading {
			return 1
		}
		return 0
	}))
	for what, of := range map[string]func(s leaderelection.Stats) int64{
		"terms":         func(s leaderelection.Stats) int64 { return s.Terms },
		"confirmations": func(s leaderelection.Stats) int64 { return s.Confirmations },
		"errors":        func(s leaderelection.Stats) int64 { return s.Errors },
	} {
		counter := prometheus.CounterOpts{Name: "leader_election_" + what + "_total", Help: what}
		to.MustRegister(prometheus.NewCounterFunc(counter, func() float64 { return float64(of(elector.Stats())) }))
	}
	return elector, nil
}

// TestMetrics collects the metrics of a term whose job fails, and of one that is resigned.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	var shown []string
	show := func() {
		answer := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		shown = append(shown, answer.Body.String())
	}
	election := fmt.Sprint("metrics", time.Now().UnixNano())
	elector, err := measured(open(t, ""), election, registry)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	if err := elector.Run(ctx, func(ctx context.Context, _ *leaderelection.Term) error {
		show()
		if len(shown) == 1 {
			return errors.New("is reported")
		}
		cancel()
		<-ctx.Done()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	show()
	for name, want := range map[string][]string{
		"leading{E}":      {"1", "1", "0"},
		"terms_total{E}":  {"1", "2", "2"},
		"errors_total{E}": {"0", "1", "1"},
		`term_seconds_bucket{E,reason="job failed",le="10"}`: {"", "1", "1"},
		`term_seconds_count{E,reason="resigned"}`:            {"", "", "1"},
	} {
		name = "\nleader_election_" + strings.ReplaceAll(name, "E", fmt.Sprintf("election=%q", election)) + " "
		for i, text := range shown {
			_, found, _ := strings.Cut(text, name)
			if found, _, _ = strings.Cut(found, "\n"); found != want[i] {
				t.Errorf("%s: %q instead of %q in %s", name, found, want[i], text)
			}
		}
	}
	if !strings.Contains(shown[2], "\nleader_election_confirmations_total{") {
		t.Error(shown[2])
	}
}
