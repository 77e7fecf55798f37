package fencepost

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// encode writes a value as JSON. Texts keep their <, > and &, and a value that panics while it is written is an
// error: it comes from a handler.
func encode(value any) (encoded json.RawMessage, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("writing JSON panicked: %v", panicked)
		}
	}()
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}

// seconds is a duration as the protocol writes it; nil for 0, which leaves the member out.
func seconds(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	number := inSeconds(d)
	return &number
}

// optional is seconds for a duration of which nil says that there is none, so that 0 is a value.
func optional(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	number := inSeconds(*d)
	return &number
}

// inSeconds is the number that is nearest to a duration. Its own Seconds() adds whole seconds and a rounded
// fraction: it makes 1.9409999999999998 of 1.941 s.
func inSeconds(d time.Duration) float64 {
	return float64(d) / float64(time.Second)
}

func optionalDuration(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	d := duration(*seconds)
	return &d
}

func duration(seconds float64) time.Duration {
	// 1.015 s would else be a nanosecond short, and another request under the same key.
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// randomUUID returns a random UUID (version 4).
func randomUUID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("fencepost: no randomness: " + err.Error())
	}
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
