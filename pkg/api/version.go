package api

import (
	"runtime"
	"runtime/debug"
)

// version is set by the linker:
//
//	-ldflags "-X github.com/delayd/delayd/pkg/api.version=v1.2.3"
var version string

// APIVersion is the first part of every path.
const APIVersion = "v1"

// Version says which build answers. It is the body of GET /v1/version.
type Version struct {
	// Version is that of the release, "devel" for a build without one.
	Version string `json:"version"`
	// Commit is the git commit it was built from, with "+dirty" where the
	// tree had changes; "" if the build does not know.
	Commit string `json:"commit"`
	// Go is the version of the compiler.
	Go string `json:"go"`
	// API is the version of the API that is served, or spoken by a client.
	API string `json:"api"`
}

// Build returns the version of the running program: the linker's word where it
// was given, else what the Go toolchain recorded, else "devel".
func Build() Version {
	info, _ := debug.ReadBuildInfo()
	return build(version, info)
}

func build(linked string, info *debug.BuildInfo) Version {
	v := Version{Version: linked, Go: runtime.Version(), API: APIVersion}
	if info != nil {
		if v.Version == "" && info.Main.Version != "(devel)" {
			v.Version = info.Main.Version
		}
		dirty := ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				v.Commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+dirty"
			}
		}
		if v.Commit != "" {
			v.Commit += dirty
		}
	}
	if v.Version == "" {
		v.Version = "devel"
	}
	return v
}
