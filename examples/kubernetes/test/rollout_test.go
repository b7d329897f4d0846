// Package test rolls the manifests beside it out: by the API server of Kubernetes, its controllers of
// deployments, replica sets and disruption budgets, with an etcd in this process.  The scheduler and
// the kubelet are those below: a pod is a pg_leader run and a pg_leader follow on this machine, with
// an address of its own, probed as its manifest says.
//
// Wrong outcomes: a rolling update is never complete; two commands run at a time; the Service selects
// a pod that does not lead; a pod is restarted while the database is away.
package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app/testing"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/disruption"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/fieldpath"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// A cluster of one node.
type cluster struct {
	t         *testing.T
	ctx       context.Context
	folder    string
	authority []byte
	config    *rest.Config
	client    *kubernetes.Clientset
	namespace string // and name: those of the Deployment
	name      string
	mu        sync.Mutex
	pods      map[types.UID]*pod
	count     int
	restarts  int
}

// A pod that runs here.
type pod struct {
	name       string
	address    string
	containers []*container
	ready      bool
	ending     bool
}

type container struct {
	spec     core.Container
	process  *exec.Cmd
	ended    chan struct{}
	failures int32
	probed   time.Time
}

func start(t *testing.T) *cluster {
	c := &cluster{t: t, ctx: t.Context(), folder: t.TempDir(), pods: map[types.UID]*pod{}}

	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(c.folder, "etcd")
	cfg.LogLevel = "error"
	at := func() []url.URL {
		return []url.URL{{Scheme: "unix", Host: fmt.Sprintf("localhost:%d%d", os.Getpid(), time.Now().UnixNano()%1000)}}
	}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = at(), at()
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	t.Chdir(c.folder)
	etcd, err := embed.StartEtcd(cfg)
	check(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()

	storage := storagebackend.NewDefaultConfig("/registry", nil)
	storage.Transport.ServerList = []string{cfg.ListenClientUrls[0].String()}
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	check(t, err)
	c.authority = certificate
	check(t, os.WriteFile("crt", certificate, 0o600))
	check(t, os.WriteFile("key", key, 0o600))
	server, err := apiserver.StartTestServer(t, &apiserver.TestServerInstanceOptions{}, []string{
		"--authorization-mode=RBAC", "--tls-cert-file=crt", "--tls-private-key-file=key",
	}, storage)
	check(t, err)
	t.Cleanup(server.TearDownFn)
	c.config = server.ClientConfig
	c.config.QPS = -1
	c.client = kubernetes.NewForConfigOrDie(c.config)

	f := informers.NewSharedInformerFactory(c.client, 0)
	pods, sets, deployments := f.Core().V1().Pods(), f.Apps().V1().ReplicaSets(), f.Apps().V1().Deployments()
	d, err := deployment.NewDeploymentController(c.ctx, deployments, sets, pods, c.client)
	check(t, err)
	r := replicaset.NewReplicaSetController(c.ctx, sets, pods, c.client, 100)
	b := disruption.NewDisruptionController(c.ctx, pods, f.Policy().V1().PodDisruptionBudgets(),
		f.Core().V1().ReplicationControllers(), sets, deployments, f.Apps().V1().StatefulSets(), c.client,
		nil, nil, discovery.NewDiscoveryClientForConfigOrDie(c.config))
	f.Start(c.ctx.Done())
	go d.Run(c.ctx, 1)
	go r.Run(c.ctx, 1)
	go b.Run(c.ctx)

	kubelet, done := context.WithCancel(c.ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for kubelet.Err() == nil {
			c.look()
			time.Sleep(100 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		done()
		<-finished
		for _, p := range c.pods {
			for _, k := range p.containers {
				k.process.Process.Kill()
				<-k.ended
			}
		}
	})
	return c
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apply creates what the kustomization has.  The API server refuses fields that it does not know.
func (c *cluster) apply(folder string) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	check(c.t, err)
	name := resources.Resources()[0].GetNamespace()
	_, err = c.client.CoreV1().Namespaces().
		Create(c.ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
	check(c.t, err)
	client := dynamic.NewForConfigOrDie(c.config)
	for _, r := range resources.Resources() {
		text, err := r.MarshalJSON()
		check(c.t, err)
		object := &unstructured.Unstructured{}
		check(c.t, object.UnmarshalJSON(text))
		kind := object.GroupVersionKind()
		if kind.Kind == "Deployment" {
			c.namespace, c.name = object.GetNamespace(), object.GetName()
		}
		plural := strings.ToLower(kind.Kind) + "s"
		_, err = client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: plural}).
			Namespace(object.GetNamespace()).Create(c.ctx, object, meta.CreateOptions{FieldValidation: "Strict"})
		check(c.t, err)
	}
}

// look does what the scheduler and the kubelet do.
func (c *cluster) look() {
	list, err := c.client.CoreV1().Pods("").List(c.ctx, meta.ListOptions{})
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range list.Items {
		o := &list.Items[i]
		p := c.pods[o.UID]
		switch {
		case o.Spec.NodeName == "":
			c.client.CoreV1().Pods(o.Namespace).Bind(c.ctx, &core.Binding{
				ObjectMeta: meta.ObjectMeta{Name: o.Name}, Target: core.ObjectReference{Kind: "Node", Name: "here"},
			}, meta.CreateOptions{})
		case p == nil && o.DeletionTimestamp == nil:
			c.begin(o)
		case p != nil && o.DeletionTimestamp != nil && !p.ending:
			p.ending = true
			go c.end(o, p)
		case p != nil:
			c.probe(o, p)
		}
	}
}

func (c *cluster) begin(o *core.Pod) {
	c.count++
	p := &pod{name: o.Name, address: fmt.Sprintf("127.0.77.%d", c.count)}
	c.pods[o.UID] = p
	account := filepath.Join(c.folder, o.Name)
	token, err := c.client.CoreV1().ServiceAccounts(o.Namespace).
		CreateToken(c.ctx, o.Spec.ServiceAccountName, &authentication.TokenRequest{}, meta.CreateOptions{})
	if err != nil {
		c.t.Error(err)
		return
	}
	os.Mkdir(account, 0o700)
	for name, text := range map[string]string{
		"token": token.Status.Token, "namespace": o.Namespace, "ca.crt": string(c.authority),
	} {
		os.WriteFile(filepath.Join(account, name), []byte(text), 0o600)
	}
	for _, spec := range o.Spec.Containers {
		k := &container{spec: spec}
		p.containers = append(p.containers, k)
		c.run(o, p, k, account)
	}
}

func (c *cluster) run(o *core.Pod, p *pod, k *container, account string) {
	host, _ := url.Parse(c.config.Host)
	env := []string{
		"PATH=" + c.folder + ":" + os.Getenv("PATH"), "ACCOUNT=" + account, "RUNS=" + c.folder,
		"KUBERNETES_SERVICE_HOST=" + host.Hostname(), "KUBERNETES_SERVICE_PORT=" + host.Port(),
	}
	expand := []string{"*:", p.address + ":", "/scheduler", filepath.Join(c.folder, "scheduler")}
	for _, from := range k.spec.EnvFrom {
		secret, err := c.client.CoreV1().Secrets(o.Namespace).Get(c.ctx, from.SecretRef.Name, meta.GetOptions{})
		if err != nil {
			c.t.Error(err)
			continue
		}
		for name, value := range secret.Data {
			env = append(env, name+"="+string(value))
		}
	}
	for _, e := range k.spec.Env {
		value := e.Value
		if e.ValueFrom != nil {
			value, _ = fieldpath.ExtractFieldPathAsString(o, e.ValueFrom.FieldRef.FieldPath)
		}
		env = append(env, e.Name+"="+value)
		expand = append(expand, "$("+e.Name+")", value)
	}
	var args []string
	for _, a := range k.spec.Command {
		args = append(args, strings.NewReplacer(expand...).Replace(a))
	}
	k.process = exec.Command(args[0], args[1:]...)
	k.process.Env = env
	k.process.Stderr = os.Stderr
	k.ended = make(chan struct{})
	if err := k.process.Start(); err != nil {
		c.t.Error(err)
		close(k.ended)
		return
	}
	go func(process *exec.Cmd, ended chan struct{}) {
		process.Wait()
		close(ended)
	}(k.process, k.ended)
}

func (c *cluster) asks(p *pod, k *container, probe *core.Probe) bool {
	port := probe.HTTPGet.Port.IntValue()
	for _, named := range k.spec.Ports {
		if named.Name == probe.HTTPGet.Port.StrVal {
			port = int(named.ContainerPort)
		}
	}
	client := http.Client{Timeout: time.Duration(probe.TimeoutSeconds) * time.Second}
	answer, err := client.Get(fmt.Sprintf("http://%s:%d%s", p.address, port, probe.HTTPGet.Path))
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode < 400
}

// probe each container, and tell the API whether the pod is ready.
func (c *cluster) probe(o *core.Pod, p *pod) {
	ready := true
	var statuses []core.ContainerStatus
	for _, k := range p.containers {
		good := true
		if k.spec.ReadinessProbe != nil {
			good = c.asks(p, k, k.spec.ReadinessProbe)
		}
		ready = ready && good
		// as if it were asked ten times as often
		if l := k.spec.LivenessProbe; l != nil && time.Since(k.probed) > time.Duration(l.PeriodSeconds)*time.Second/10 {
			k.probed = time.Now()
			k.failures++
			if c.asks(p, k, l) {
				k.failures = 0
			}
			if k.failures >= l.FailureThreshold && !p.ending {
				c.restarts++
				k.failures = 0
			}
		}
		statuses = append(statuses, core.ContainerStatus{
			Name: k.spec.Name, Image: k.spec.Image, Ready: good,
			State: core.ContainerState{Running: &core.ContainerStateRunning{}},
		})
	}
	is := core.ConditionFalse
	if ready {
		is = core.ConditionTrue
	}
	if ready == p.ready && o.Status.Phase == core.PodRunning {
		return
	}
	o = o.DeepCopy()
	o.Status.Phase = core.PodRunning
	o.Status.ContainerStatuses = statuses
	o.Status.Conditions = []core.PodCondition{{Type: core.PodReady, Status: is, LastTransitionTime: meta.Now()}}
	if _, err := c.client.CoreV1().Pods(o.Namespace).UpdateStatus(c.ctx, o, meta.UpdateOptions{}); err == nil {
		p.ready = ready
	}
}

// end sends SIGTERM, and SIGKILL after the pod's grace period.
func (c *cluster) end(o *core.Pod, p *pod) {
	limit := time.After(time.Duration(*o.DeletionGracePeriodSeconds) * time.Second)
	for _, k := range p.containers {
		k.process.Process.Signal(syscall.SIGTERM)
	}
	for _, k := range p.containers {
		select {
		case <-k.ended:
		case <-limit:
			c.t.Errorf("%s does not end within its grace period", p.name)
			k.process.Process.Kill()
		}
	}
	now := int64(0)
	c.client.CoreV1().Pods(o.Namespace).Delete(c.ctx, p.name, meta.DeleteOptions{GracePeriodSeconds: &now})
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, o.UID)
}

// selected returns the pods to which the Service sends requests.
func (c *cluster) selected() []string {
	service, err := c.client.CoreV1().Services(c.namespace).Get(c.ctx, c.name, meta.GetOptions{})
	check(c.t, err)
	list, err := c.client.CoreV1().Pods(c.namespace).List(c.ctx, meta.ListOptions{
		LabelSelector: meta.FormatLabelSelector(&meta.LabelSelector{MatchLabels: service.Spec.Selector}),
	})
	check(c.t, err)
	var names []string
	for _, o := range list.Items {
		if o.DeletionTimestamp != nil {
			continue
		}
		for _, condition := range o.Status.Conditions {
			if condition.Type == core.PodReady && condition.Status == core.ConditionTrue {
				names = append(names, o.Name)
			}
		}
	}
	return names
}

// running returns the pods whose program runs.
func (c *cluster) running() []string {
	files, _ := filepath.Glob(filepath.Join(c.folder, "*.runs"))
	for i := range files {
		files[i] = strings.TrimSuffix(filepath.Base(files[i]), ".runs")
	}
	return files
}

func (c *cluster) waitFor(what string, limit time.Duration, so func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if so() {
			return true
		}
	}
	return false
}

func (c *cluster) rolledOut() bool {
	d, err := c.client.AppsV1().Deployments(c.namespace).Get(c.ctx, c.name, meta.GetOptions{})
	check(c.t, err)
	s, n := d.Status, *d.Spec.Replicas
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n
}

// change patches the pods' template, so that they are replaced.
func (c *cluster) change(template any) {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	check(c.t, err)
	_, err = c.client.AppsV1().Deployments(c.namespace).
		Patch(c.ctx, c.name, types.StrategicMergePatchType, patch, meta.PatchOptions{FieldValidation: "Strict"})
	check(c.t, err)
}

func annotated(version string) any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{"version": version}}}
}

func readyBy(path string) any {
	return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": "scheduler", "readinessProbe": map[string]any{"httpGet": map[string]any{"path": path}},
	}}}}
}

func connectAs(user string) any {
	return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": "scheduler", "env": []any{map[string]any{"name": "PGUSER", "value": user}},
	}}}}
}

// leads tells whether one pod runs the program, and the Service selects that one.
func (c *cluster) leads() bool {
	running, selected := c.running(), c.selected()
	return len(running) == 1 && len(selected) == 1 && running[0] == selected[0]
}

func TestRollout(t *testing.T) {
	root, err := filepath.Abs("../../..")
	check(t, err)
	c := start(t)
	script := "#!/bin/sh\n" +
		"for other in \"$RUNS\"/*.runs; do [ ! -e \"$other\" ] || echo \"$other\" >>\"$RUNS/two\"; done\n" +
		"trap 'rm \"$RUNS/$POD.runs\"; exit 0' TERM\n: >\"$RUNS/$POD.runs\"\nwhile :; do sleep 0.05; done\n"
	check(t, os.WriteFile(filepath.Join(c.folder, "scheduler"), []byte(script), 0o755))
	check(t, os.Symlink(filepath.Join(root, "container/label-leader.sh"), filepath.Join(c.folder, "label-leader")))

	// the kustomization of the documents
	text, err := os.ReadFile(filepath.Join(root, "doc/command.md"))
	check(t, err)
	documented := regexp.MustCompile("(?s)```yaml\n(resources:.*?)```").FindSubmatch(text)
	check(t, os.WriteFile(filepath.Join(c.folder, "kustomization.yaml"), documented[1], 0o600))
	check(t, os.CopyFS(filepath.Join(c.folder, "examples/kubernetes"), os.DirFS(filepath.Join(root, "examples/kubernetes"))))
	database := "PGHOST=" + os.Getenv("PGHOST") + "\nPGDATABASE=postgres\nPGUSER=postgres\nPGPASSWORD=\n"
	check(t, os.WriteFile(filepath.Join(c.folder, "database.env"), []byte(database), 0o600))
	c.apply(c.folder)

	must := func(what string, so func() bool) {
		t.Helper()
		begun := time.Now()
		if !c.waitFor(what, 60*time.Second, so) {
			t.Fatalf("%s: not within 60 s; runs: %v, selected: %v", what, c.running(), c.selected())
		}
		t.Logf("%s: after %.1f s", what, time.Since(begun).Seconds())
	}
	must("the first rollout", c.rolledOut)
	must("the Service selects the leader", c.leads)

	for _, version := range []string{"2", "3"} {
		c.change(annotated(version))
		must("a rolling update", c.rolledOut)
		must("the Service selects the leader", c.leads)
	}

	leader := c.running()[0]
	evict := func(name string) error {
		return c.client.PolicyV1().Evictions(c.namespace).
			Evict(c.ctx, &policy.Eviction{ObjectMeta: meta.ObjectMeta{Name: name, Namespace: c.namespace}})
	}
	must("the budget allows a disruption", func() bool { return evict(leader) == nil })
	must("another one leads", func() bool { return c.leads() && c.running()[0] != leader })
	if next := c.running()[0]; !c.rolledOut() {
		if err := evict(next); !errors.IsTooManyRequests(err) {
			t.Errorf("the budget allows a second disruption: %v", err)
		}
	}
	must("both are there again", c.rolledOut)

	// the server of the database is restarted
	control := func(action string) {
		out, err := exec.Command("sh", "-c", os.Getenv("DATABASE_CONTROL")+" "+action).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", err, out)
		}
	}
	control("stop")
	must("no program runs", func() bool { return len(c.running()) == 0 })
	time.Sleep(8 * time.Second) // what the probes would need, as often as they ask
	if c.restarts > 0 {
		t.Errorf("%d restarts while the database was away", c.restarts)
	}
	control("start")
	must("one leads again", c.leads)
	must("all are ready", c.rolledOut)

	// an update that cannot reach the database replaces no leader
	c.change(connectAs("nobody"))
	if c.waitFor("", 30*time.Second, c.rolledOut) || !c.leads() {
		t.Error("an update to a user that does not exist is complete, or none leads")
	}
	c.change(connectAs("postgres"))
	must("the update to one that exists", c.rolledOut)

	// what this test can find: with the leader alone ready, no update gets to its end
	c.change(readyBy("/leader"))
	if c.waitFor("", 30*time.Second, c.rolledOut) {
		t.Error("an update to readiness by /leader is complete, so this test shows nothing")
	}
	c.change(readyBy("/health"))
	must("the next update", c.rolledOut)
	must("the Service selects the leader", c.leads)
	if two, err := os.ReadFile(filepath.Join(c.folder, "two")); err == nil {
		t.Errorf("two programs at a time: %s", two)
	}
}
