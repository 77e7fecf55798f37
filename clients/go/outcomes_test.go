package fencepost

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

var aKey = leaseKey{"019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d", 7}

type outOfStock struct{}

func (outOfStock) Error() string { return "out of stock" }

type noStock struct{ item string }

func (n *noStock) Error() string { return n.item }

type writesBadly struct{}

func (writesBadly) MarshalJSON() ([]byte, error) { panic("no") }

func TestWhatAHandlerReturnsDecidesHowItsJobEnds(t *testing.T) {
	lost := &LeaseLost{Reason: "expired"}
	const lease = `"job_id":"019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d","lease_version":7`
	for _, each := range []struct {
		name   string
		result any
		err    error
		stop   error
		verb   verb
		item   string
	}{
		{"nothing completes", nil, nil, nil, complete, ``},
		{"a result completes", map[string]any{"sent": true}, nil, nil, complete, `,"result":{"sent":true}`},
		{"texts keep their signs", "a<b&c", nil, nil, complete, `,"result":"a<b&c"`},
		{"digits stay", json.RawMessage(`9007199254740993`), nil, nil, complete, `,"result":9007199254740993`},
		{
			"follow-ups come along", Complete{Result: 1, Enqueue: []Submission{{Kind: "next", Delay: time.Second}}},
			nil, nil, complete, `,"result":1,"enqueue":[{"kind":"next","delay_seconds":1}]`,
		},
		{"settled sends nothing", Settled, nil, nil, nothing, ``},
		{
			"an error fails with its type", nil, outOfStock{}, nil, fail,
			`,"error":{"type":"fencepost.outOfStock","message":"out of stock"}`,
		},
		{
			"a wrapped error has the type within", nil, fmt.Errorf("buying: %w", outOfStock{}), nil, fail,
			`,"error":{"type":"fencepost.outOfStock","message":"buying: out of stock"}`,
		},
		{"a plain error is an error", nil, errors.New("no"), nil, fail, `,"error":{"type":"error","message":"no"}`},
		{
			"permanent is not retried", nil, Permanent(outOfStock{}), nil, fail,
			`,"error":{"type":"fencepost.outOfStock","message":"out of stock"},"retryable":false`,
		},
		{
			"retried later", nil, RetryAfter(90*time.Second, errors.New("no")), nil, fail,
			`,"error":{"type":"error","message":"no"},"retry_after_seconds":90`,
		},
		{
			"retried at once", nil, RetryAfter(0, errors.New("no")), nil, fail,
			`,"error":{"type":"error","message":"no"},"retry_after_seconds":0`,
		},
		{"no error made permanent", 1, Permanent(nil), nil, complete, `,"result":1`},
		{"no error retried later", 1, RetryAfter(time.Minute, nil), nil, complete, `,"result":1`},
		{
			"a fail is found in its wrapping", nil, fmt.Errorf("x: %w", Fail{Message: "m", Details: 1}), nil, fail,
			`,"error":{"type":"fail","message":"m","details":1}`,
		},
		{
			"details that are no JSON are dropped", nil, Fail{Message: "m", Details: math.NaN()}, nil, fail,
			`,"error":{"type":"fail","message":"m","details":{"dropped":true,"reason":"json: unsupported value: NaN"}}`,
		},
		{"a release", nil, Release{Delay: time.Minute, Reason: "busy"}, nil, release, `,"delay_seconds":60,"reason":"busy"`},
		{"a release until a time that has passed", nil, Release{Delay: -time.Minute}, nil, release, ``},
		{"a release as the result", Release{}, nil, nil, release, ``},
		{"a fail as the result", Fail{Message: "m"}, nil, nil, fail, `,"error":{"type":"fail","message":"m"}`},
		{
			"a pointer to a fail", nil, &Fail{Message: "m", Permanent: true}, nil, fail,
			`,"error":{"type":"fail","message":"m"},"retryable":false`,
		},
		{"a pointer to a release", nil, &Release{Reason: "r"}, nil, release, `,"reason":"r"`},
		{"a pointer to a complete", &Complete{Result: 1}, nil, nil, complete, `,"result":1`},
		{
			"a result that is no JSON", math.Inf(1), nil, nil, fail,
			`,"error":{"type":"result_refused","message":"json: unsupported value: +Inf"},"retryable":false`,
		},
		{
			"a result that panics", writesBadly{}, nil, nil, fail,
			`,"error":{"type":"result_refused","message":"writing JSON panicked: no"},"retryable":false`,
		},
		{
			"a follow-up with a key", Complete{Enqueue: []Submission{{Kind: "k", IdempotencyKey: "x"}}}, nil, nil, fail,
			`,"error":{"type":"result_refused","message":` +
				`"a follow-up job of a Complete has no Parent and no IdempotencyKey of its own"},"retryable":false`,
		},
		{"lost: a result is not sent", 1, nil, lost, nothing, ``},
		{"lost: an error is not sent", nil, errors.New("no"), lost, nothing, ``},
		{"lost: a release is not sent", nil, Release{}, lost, nothing, ``},
		{"cancelled: a result completes", 1, nil, ErrCancelled, complete, `,"result":1`},
		{
			"cancelled: an error fails as cancelled", nil, ErrCancelled, ErrCancelled, fail,
			`,"error":{"type":"cancelled","message":"a cancel was asked for"}`,
		},
		{"shutdown: a result completes", 1, nil, ErrShutdown, complete, `,"result":1`},
		{
			"shutdown: an error releases", nil, errors.New("no"), ErrShutdown, release,
			`,"reason":"the worker shut down"`,
		},
		{"shutdown: a release is as given", nil, Release{Reason: "r"}, ErrShutdown, release, `,"reason":"r"`},
		{"shutdown: settled sends nothing", Settled, nil, ErrShutdown, nothing, ``},
	} {
		t.Run(each.name, func(t *testing.T) {
			got := decide(aKey, each.result, each.err, each.stop)
			want := "{" + lease + each.item + "}"
			if each.verb == nothing {
				want = ""
			}
			if got.verb != each.verb || string(got.item) != want {
				t.Errorf("%s %s\nnot %s %s", got.verb, got.item, each.verb, want)
			}
		})
	}
}

func TestARefusedEndIsReducedOnceAndThenGivenUp(t *testing.T) {
	const lease = `"job_id":"019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d","lease_version":7`
	long := strings.Repeat("ü", 1500)
	for _, each := range []struct {
		name    string
		refused outcome
		verb    verb
		item    string
	}{
		{
			"a result", completed(aKey, "too large"), fail,
			`,"error":{"type":"result_refused","message":"it is too large"},"retryable":false`,
		},
		{
			"a failure", failedWith(aKey, Fail{Type: "t", Message: long, Details: 1, RetryAfter: time.Second}), fail,
			`,"error":{"type":"t","message":"` + long[:2000] + `"},"retry_after_seconds":1`,
		},
		{
			"a failure for good", failedWith(aKey, Fail{Message: "a<b", Details: "x", Permanent: true}), fail,
			`,"error":{"type":"","message":"a<b"},"retryable":false`,
		},
		{"a release", released(aKey, Release{Delay: time.Minute, Reason: "busy"}), release, `,"delay_seconds":60`},
	} {
		t.Run(each.name, func(t *testing.T) {
			got, found := reduced(aKey, each.refused, "it is too large")
			if want := "{" + lease + each.item + "}"; !found || got.verb != each.verb || string(got.item) != want {
				t.Errorf("%s %s\nnot %s %s", got.verb, got.item, each.verb, want)
			}
			if again, found := reduced(aKey, got, "still"); found {
				t.Errorf("%s is sent as well", again.item)
			}
		})
	}
}

func TestAnErrorThatPanicsWhenItIsAskedFailsItsJobOnly(t *testing.T) {
	var typed *noStock
	var failed *Fail
	for _, err := range []error{typed, failed} {
		if got := outcomeOf(aKey, nil, err, nil); got.verb != fail || !strings.Contains(string(got.item), `"type":"panic"`) {
			t.Errorf("%T: %s %s", err, got.verb, got.item)
		}
		if got := outcomeOf(aKey, nil, err, &LeaseLost{}); got.verb != nothing {
			t.Errorf("%T under a lost lease: %s", err, got.item)
		}
		if got := outcomeOf(aKey, nil, err, ErrShutdown); got.verb != release {
			t.Errorf("%T in a shutdown: %s", err, got.item)
		}
	}
}

func TestAPanicBecomesAFailureWithTheStack(t *testing.T) {
	defer func() {
		failed := panicked(recover())
		stack := failed.Details.(map[string]string)["stack"]
		if failed.Type != "panic" || failed.Message != "boom" || !strings.Contains(stack, "outcomes_test.go") {
			t.Errorf("%+v", failed)
		}
	}()
	panic("boom")
}
