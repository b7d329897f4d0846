package drivers

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestArchive makes the module's archive, as a proxy does, and tests and uses the library from it
// alone: as a module that is published, and unpacked into a folder, by the lines of the README.
func TestArchive(t *testing.T) {
	const name = "github.com/leader-election/leader_election/clients/go"
	folder := t.TempDir()
	write := func(content string, path ...string) {
		t.Helper()
		file := filepath.Join(append([]string{folder}, path...)...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := zip.CreateFromDir(&archive, module.Version{Path: name, Version: "v1.0.0"}, ".."); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{".mod": string(mod), ".info": `{"Version": "v1.0.0"}`, ".zip": archive.String()} {
		write(content, "proxy", name, "@v", "v1.0.0"+file)
	}
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindStringSubmatch(string(readme))[1]
	install := regexp.MustCompile("(?s)```\n(go mod edit .*?)```").FindStringSubmatch(string(readme))[1]
	for _, folder := range []string{"published", "unpacked"} {
		write(program, folder, "main.go")
		write("module example.com/program\n\ngo 1.23.0\n", folder, "go.mod")
	}
	shell := exec.Command("sh", "-exc", `
		cached=$(go env GOMODCACHE) GOMODCACHE=$PWD/cache GOPROXY=file://$PWD/proxy,file://$cached/cache/download,$(go env GOPROXY)
		export GOMODCACHE GOPROXY GOFLAGS=-modcacherw GONOSUMDB=`+name+` DATABASE_URL= POOLER_URL=
		cd published
		go get `+name+`@v1.0.0
		go vet . `+name+`
		go test -count=1 `+name+`
		cp -R "$GOMODCACHE/`+name+`@v1.0.0" ../library
		cd ../unpacked
		`+strings.ReplaceAll(install, "FOLDER", "../library")+`
		go build .`)
	shell.Dir = folder
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
