package fencepost_test

import (
	"os"
	"reflect"
	"regexp"
	"testing"

	"fencepost"
)

func TestTheReadmeNamesEveryOptionAndAllThatAHandlerIsGiven(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range []any{fencepost.WorkerOptions{}, fencepost.ClientOptions{}, fencepost.Job{}, &fencepost.Job{}} {
		for _, name := range exported(reflect.TypeOf(each)) {
			if !regexp.MustCompile("`" + name + "[`(]").Match(text) {
				t.Errorf("%T.%s is not in the README", each, name)
			}
		}
	}
}

// exported returns the fields of a struct, or the methods of a pointer to one.
func exported(of reflect.Type) []string {
	var names []string
	for i := 0; i < of.NumMethod(); i++ {
		names = append(names, of.Method(i).Name)
	}
	if of.Kind() == reflect.Struct {
		for _, field := range reflect.VisibleFields(of) {
			if field.IsExported() {
				names = append(names, field.Name)
			}
		}
	}
	return names
}
