package fencepost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// caller sends calls to one service.
type caller struct {
	baseURL string
	apiKey  string
	http    *http.Client
	outage  *outage
	// mistake says why no call can be sent at all; nil when they can.
	mistake error
}

type call struct {
	method string
	path   string
	header map[string]string
	body   []byte
	// read takes the body of a success. An error of it means that whoever answered was not the service.
	read func(body []byte) error
	// isHolders is set for an end or a heartbeat: what is answered is a refusal of its items or a success, and a wrong
	// key is for the lease call to tell.
	isHolders bool
}

type answer struct {
	status int
	header http.Header
	body   []byte
	// repeated is set when an earlier try of the call was not answered, and may have been done.
	repeated bool
}

// patience says how long a call is waited for, and until when it is repeated.
type patience struct {
	try time.Duration
	// No repeat begins later than this after the first try; 0 is for ever.
	total time.Duration
}

func newCaller(baseURL, apiKey string, client *http.Client, log *slog.Logger) *caller {
	if client == nil {
		client = defaultHTTPClient()
	}
	return &caller{
		baseURL: strings.TrimRight(baseURL, "/"),
		apiKey:  apiKey,
		http:    client,
		outage:  &outage{log: log},
		mistake: mistakeIn(baseURL, apiKey),
	}
}

// mistakeIn finds what no request can be made of: repeated, it would look like a service that is away.
func mistakeIn(baseURL, apiKey string) error {
	parsed, err := url.Parse(baseURL)
	switch {
	case err != nil:
		return fmt.Errorf("fencepost: the service has no such address: %w", err)
	case parsed.Scheme != "http" && parsed.Scheme != "https", parsed.Host == "":
		return fmt.Errorf("fencepost: the service has an address such as http://127.0.0.1:8000, not %q", parsed.Redacted())
	case strings.ContainsFunc(apiKey, unicode.IsControl):
		return errors.New("fencepost: the API key has a control character, perhaps the newline of its file")
	}
	return nil
}

func defaultHTTPClient() *http.Client {
	return &http.Client{
		Transport: ownTransport(http.DefaultTransport),
		// A redirect would turn a POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ownTransport copies the program's default. One that is wrapped, for tracing say, is used as it is.
func ownTransport(standard http.RoundTripper) http.RoundTripper {
	plain, isPlain := standard.(*http.Transport)
	if !isPlain {
		return standard
	}
	transport := plain.Clone()
	// The default keeps two, and a worker has a call of each verb on its way.
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns
	// The service closes a connection after 75 idle seconds; a call should not meet it at that.
	transport.IdleConnTimeout = time.Minute
	// Each call has its own time, and one that leases waits.
	transport.ResponseHeaderTimeout = 0
	return transport
}

// isWeather tells whether the answer says nothing about the call, so that it is to be sent again.
func (a answer) isWeather() bool {
	return a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusRequestTimeout
}

// isUnacceptable tells whether what was sent is to blame: an item of a call for many may be.
func (a answer) isUnacceptable() bool {
	switch a.status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// isAnsweredBy tells whether the answer's status says something about the call.
func (c call) isAnsweredBy(got answer) bool {
	if c.isHolders {
		return got.status == http.StatusOK || got.isUnacceptable()
	}
	return !got.isWeather()
}

// takes returns nil when the call need not be repeated.
func (c call) takes(got answer) error {
	switch {
	case !c.isAnsweredBy(got):
		return refusal(got)
	case c.read != nil && got.status < 300:
		return c.read(got.body)
	}
	return nil
}

// retryAfter returns how long the header wants the service to be left alone, in seconds or until a date; 0 without one.
func (a answer) retryAfter() time.Duration {
	text := a.header.Get("Retry-After")
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(max(seconds, 0)) * time.Second
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(time.Until(date), 0)
}

// once sends a call and reads the answer. An error means that none came which says something about the call; the
// answer has what came instead, if anything.
func (c *caller) once(ctx context.Context, call call, timeout time.Duration) (answer, error) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, err := c.exchange(within, call)
	if err == nil {
		err = call.takes(got)
	}
	switch {
	case err == nil:
		c.outage.end()
	case ctx.Err() == nil:
		// Else it was given up, which says nothing about the service.
		c.outage.begin(err)
	}
	return got, err
}

func (c *caller) exchange(ctx context.Context, call call) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, call.method, c.baseURL+call.path, bytes.NewReader(call.body))
	if err != nil {
		return answer{}, err
	}
	for name, value := range call.header {
		request.Header.Set(name, value)
	}
	if call.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.apiKey != "" {
		request.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	return answer{status: response.StatusCode, header: response.Header, body: body}, nil
}

// untilAnswered sends the same call until there is an answer that says something about it.
//
// The error is the context's cause, *Unavailable when the patience is over, or the mistake of which no call can be made.
func (c *caller) untilAnswered(ctx context.Context, call call, patience patience) (answer, error) {
	if c.mistake != nil {
		return answer{}, c.mistake
	}
	began := now()
	var pauses pauses
	for {
		got, err := c.once(ctx, call, patience.try)
		switch {
		case err == nil:
			got.repeated = pauses.whole > 0
			return got, nil
		case ctx.Err() != nil:
			return answer{}, context.Cause(ctx)
		}
		pause := pauses.next(got.retryAfter())
		if patience.total > 0 && now().add(pause).sub(began) > patience.total {
			return answer{}, &Unavailable{After: now().sub(began), Last: err}
		}
		if !sleep(ctx, pause) {
			return answer{}, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}

// pauses are those between the tries of one call: doubled each time, each drawn between half and the whole.
type pauses struct {
	whole time.Duration
}

func (p *pauses) next(least time.Duration) time.Duration {
	switch {
	case p.whole == 0:
		p.whole = firstPause
	case p.whole < lastPause/2:
		p.whole *= 2
	default:
		p.whole = lastPause
	}
	drawn := p.whole/2 + time.Duration(rand.Int63n(int64(p.whole/2)+1))
	return max(drawn, least)
}

// sleep returns false when the context ends first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// outage logs once when the service goes away, and once when it is back.
type outage struct {
	log   *slog.Logger
	mu    sync.Mutex
	since instant
}

func (o *outage) begin(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == 0 {
		o.since = now()
		o.log.Warn("the service does not answer; calls are repeated", "error", err.Error())
	}
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since != 0 {
		o.log.Info("the service answers again", "away_seconds", now().sub(o.since).Seconds())
		o.since = 0
	}
}
