package fencepost

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
)

// statements notes what is executed.
type statements struct {
	query string
	args  []any
	err   error
}

func (s *statements) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	s.query, s.args = query, args
	return nil, s.err
}

// databaseError is what drivers return: pgx and lib/pq have this method.
type databaseError string

func (e databaseError) Error() string    { return "refused" }
func (e databaseError) SQLState() string { return string(e) }

var _ Execer = (*sql.Tx)(nil)

func TestTheFenceRunsInTheCallersTransactionWithTheHeldVersion(t *testing.T) {
	job := held(t, holding(t, 1), jobOf("a", 7), 0).job
	var ran statements
	if err := job.HoldLease(context.Background(), &ran); err != nil {
		t.Fatal(err)
	}
	if ran.query != "SELECT fencepost.hold_lease($1, $2)" || fmt.Sprint(ran.args) != "[a 7]" {
		t.Error(ran)
	}
	if err := job.CompleteIn(context.Background(), &ran, map[string]int{"charged": 1}); err != nil {
		t.Fatal(err)
	}
	if ran.query != "SELECT fencepost.complete($1, $2, $3)" || fmt.Sprint(ran.args) != `[a 7 {"charged":1}]` {
		t.Error(ran)
	}
}

func TestARefusalByTheFenceIsALostLeaseAndStopsTheHandler(t *testing.T) {
	l := held(t, holding(t, 1), jobOf("a", 7), 0)
	cause := databaseError("FP001")
	err := l.job.HoldLease(context.Background(), &statements{err: fmt.Errorf("exec: %w", cause)})
	if !errors.Is(err, ErrLeaseLost) || !errors.Is(err, cause) || !errors.Is(context.Cause(l.ctx), ErrLeaseLost) {
		t.Error(err, context.Cause(l.ctx))
	}
}

func TestAnyOtherErrorOfTheDatabaseIsNoLostLease(t *testing.T) {
	l := held(t, holding(t, 1), jobOf("a", 7), 0)
	for _, failed := range []error{databaseError("40001"), errors.New("broken pipe")} {
		err := l.job.HoldLease(context.Background(), &statements{err: failed})
		if err != failed || l.ctx.Err() != nil {
			t.Error(err, context.Cause(l.ctx))
		}
	}
}
