package fencepost

import (
	"context"
	"database/sql"
	"errors"
)

// The SQLSTATE with which the service's SQL functions refuse a lease that is not held.
const leaseLostState = "FP001"

// Execer runs a statement in a transaction: a *sql.Tx or a *sql.Conn does.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// HoldLease locks the lease until the end of the caller's transaction, which has to be in the service's database: what
// that transaction writes is committed while the lease is held, or not at all. The error is a *LeaseLost when the
// lease is over; the transaction can only be rolled back then.
func (j *Job) HoldLease(ctx context.Context, transaction Execer) error {
	_, err := transaction.ExecContext(ctx, "SELECT fencepost.hold_lease($1, $2)", j.ID, j.LeaseVersion)
	return j.fenced(err)
}

// CompleteIn completes the job in the caller's transaction, which has to be in the service's database. The handler
// commits, and then returns Settled. The error is a *LeaseLost when the lease is over.
func (j *Job) CompleteIn(ctx context.Context, transaction Execer, result any) error {
	encoded, err := encode(result)
	if err != nil {
		return err
	}
	_, err = transaction.ExecContext(
		ctx, "SELECT fencepost.complete($1, $2, $3)", j.ID, j.LeaseVersion, string(encoded))
	return j.fenced(err)
}

// fenced makes a *LeaseLost of the error with which the SQL functions say so. Drivers name the SQLSTATE alike.
func (j *Job) fenced(err error) error {
	var refused interface{ SQLState() string }
	if !errors.As(err, &refused) || refused.SQLState() != leaseLostState {
		return err
	}
	return j.noteLost(&LeaseLost{JobID: j.ID, PresentedVersion: j.LeaseVersion, Reason: "unknown", cause: err})
}
