// franz-go behind a line protocol: one JSON call a line on standard input, one JSON answer a line
// on standard output. See drivers/remote.py for the other side.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const wait = 20 * time.Second

// record is one record; bytes travel in base64, which is what JSON makes of them here.
type record struct {
	Value     []byte   `json:"value"`
	Key       []byte   `json:"key"`
	Headers   []header `json:"headers"`
	Timestamp int64    `json:"timestamp"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
}

// header is a name and a value, as a list of two.
type header kgo.RecordHeader

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Key, h.Value}) }

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.Key, &h.Value})
}

// place is a partition, an offset and its metadata, as a list of two or three.
type place struct {
	partition int32
	offset    int64
	metadata  string
}

func (p *place) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&p.partition, &p.offset, &p.metadata})
}

type call struct {
	ID            int                `json:"id"`
	Op            string             `json:"op"`
	Bootstrap     string             `json:"bootstrap"`
	Topic         string             `json:"topic"`
	Group         string             `json:"group"`
	Records       []record           `json:"records"`
	Codec         string             `json:"codec"`
	Idempotent    bool               `json:"idempotent"`
	Starts        []place            `json:"starts"`
	Offsets       []place            `json:"offsets"`
	Count         int                `json:"count"`
	WaitMs        int64              `json:"wait_ms"`
	Committed     bool               `json:"committed"`
	Protocol      string             `json:"protocol"`
	Assignor      string             `json:"assignor"`
	Instance      string             `json:"instance"`
	SessionMs     int64              `json:"session_ms"`
	HeartbeatMs   int64              `json:"heartbeat_ms"`
	Partitions    json.RawMessage    `json:"partitions"`
	Timestamp     int64              `json:"timestamp"`
	Configs       map[string]*string `json:"configs"`
	Total         int                `json:"total"`
	Key           string             `json:"key"`
	Value         string             `json:"value"`
	Member        int                `json:"member"`
	Transactional string             `json:"transactional"`
	TimeoutMs     int64              `json:"timeout_ms"`
	Producer      int                `json:"producer"`
	Does          string             `json:"does"`
}

func (c *call) milliseconds(number int64) time.Duration {
	return time.Duration(number) * time.Millisecond
}

func (c *call) wanted() map[int32]bool {
	var numbers []int32
	if err := json.Unmarshal(c.Partitions, &numbers); err != nil {
		panic(err)
	}
	found := map[int32]bool{}
	for _, number := range numbers {
		found[number] = true
	}
	return found
}

func (c *call) places(offsets []place) kadm.Offsets {
	found := kadm.Offsets{}
	for _, each := range offsets {
		found.Add(kadm.Offset{
			Topic: c.Topic, Partition: each.partition, At: each.offset, LeaderEpoch: -1,
			Metadata: each.metadata,
		})
	}
	return found
}

func (c *call) client(more ...kgo.Opt) (*kgo.Client, error) {
	secured, err := connecting()
	if err != nil {
		return nil, err
	}
	more = append(secured, more...)
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(c.Bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryTimeout(wait),
		kgo.RecordDeliveryTimeout(wait),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.DisableClientMetrics(),
	}, more...)...)
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func toRecord(each *kgo.Record) record {
	found := record{
		Value: each.Value, Key: each.Key, Headers: []header{},
		Timestamp: each.Timestamp.UnixMilli(), Partition: each.Partition, Offset: each.Offset,
	}
	for _, one := range each.Headers {
		found.Headers = append(found.Headers, header(one))
	}
	return found
}

func send(ctx context.Context, client *kgo.Client, c *call) (any, error) {
	sent := make([]*kgo.Record, len(c.Records))
	for index, each := range c.Records {
		headers := make([]kgo.RecordHeader, len(each.Headers))
		for number, one := range each.Headers {
			headers[number] = kgo.RecordHeader(one)
		}
		sent[index] = &kgo.Record{
			Topic: c.Topic, Partition: each.Partition, Key: each.Key, Value: each.Value,
			Headers: headers, Timestamp: time.UnixMilli(each.Timestamp),
		}
	}
	if err := client.ProduceSync(ctx, sent...).FirstErr(); err != nil {
		return nil, err
	}
	offsets := make([]int64, len(sent))
	for index, each := range sent {
		offsets[index] = each.Offset
	}
	return offsets, nil
}

func produce(ctx context.Context, c *call) (any, error) {
	options := []kgo.Opt{kgo.ProducerBatchCompression(codecs[c.Codec])}
	if !c.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	client, err := c.client(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return send(ctx, client, c)
}

func isolation(committed bool) kgo.Opt {
	if committed {
		return kgo.FetchIsolationLevel(kgo.ReadCommitted())
	}
	return kgo.FetchIsolationLevel(kgo.ReadUncommitted())
}

func consume(ctx context.Context, c *call) (any, error) {
	starts := map[int32]kgo.Offset{}
	for _, each := range c.Starts {
		starts[each.partition] = kgo.NewOffset().At(each.offset)
	}
	places := map[string]map[int32]kgo.Offset{c.Topic: starts}
	client, err := c.client(kgo.ConsumePartitions(places), isolation(c.Committed))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, c.milliseconds(c.WaitMs))
	defer cancel()
	seen := []record{}
	for len(seen) < c.Count && ctx.Err() == nil {
		fetched := client.PollFetches(ctx)
		fetched.EachRecord(func(each *kgo.Record) { seen = append(seen, toRecord(each)) })
		if err := fetched.Err0(); err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	return seen, nil
}

// member is a consumer in a group, polled by a goroutine of its own.
type member struct {
	mutex      sync.Mutex
	client     *kgo.Client
	owned      map[int32]bool
	revoked    map[int32]bool
	rebalances int
	seen       []record
	failure    error
	closing    bool
	stop       context.CancelFunc
	done       chan struct{}
}

func (m *member) gave(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.rebalances++
	for _, numbers := range partitions {
		for _, number := range numbers {
			m.owned[number] = true
		}
	}
}

func (m *member) took(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		m.fail(err)
	}
	m.lost(ctx, client, partitions)
}

func (m *member) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, numbers := range partitions {
		for _, number := range numbers {
			delete(m.owned, number)
			if !m.closing {
				m.revoked[number] = true
			}
		}
	}
}

func (m *member) fail(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.failure = err
}

// joinsAgain says whether a poll only tells of a session with the group that the client begins anew.
func joinsAgain(err error) bool {
	var session *kgo.ErrGroupSession
	return errors.As(err, &session) && !errors.Is(err, kerr.FencedInstanceID)
}

func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		fetched := m.client.PollFetches(ctx)
		if err := fetched.Err0(); err != nil && ctx.Err() == nil && !joinsAgain(err) {
			m.fail(err)
			return
		}
		m.mutex.Lock()
		fetched.EachRecord(func(each *kgo.Record) { m.seen = append(m.seen, toRecord(each)) })
		m.mutex.Unlock()
		m.client.AllowRebalance()
	}
}

var balancers = map[string][]kgo.Opt{
	"range":       {kgo.Balancers(kgo.RangeBalancer())},
	"cooperative": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
	"uniform":     {kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()},
}

func (d *driver) openMember(c *call) (any, error) {
	ctx, stop := context.WithCancel(context.Background())
	made := &member{
		owned: map[int32]bool{}, revoked: map[int32]bool{}, seen: []record{}, stop: stop,
		done: make(chan struct{}),
	}
	options := append([]kgo.Opt{
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(c.milliseconds(c.SessionMs)),
		kgo.HeartbeatInterval(c.milliseconds(c.HeartbeatMs)),
		kgo.AutoCommitInterval(200 * time.Millisecond),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(made.gave),
		kgo.OnPartitionsRevoked(made.took),
		kgo.OnPartitionsLost(made.lost),
	}, balancers[c.Assignor]...)
	if c.Instance != "" {
		options = append(options, kgo.InstanceID(c.Instance))
	}
	client, err := c.client(options...)
	if err != nil {
		return nil, err
	}
	made.client = client
	d.members[c.ID] = made
	go made.run(ctx)
	return c.ID, nil
}

func (m *member) state() (any, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.failure != nil {
		return nil, m.failure
	}
	return map[string]any{
		"assignment": numbers(m.owned), "rebalances": m.rebalances, "revoked": numbers(m.revoked),
	}, nil
}

func (m *member) close() error {
	m.mutex.Lock()
	m.closing = true
	m.mutex.Unlock()
	m.stop()
	<-m.done
	m.client.CloseAllowingRebalance()
	return m.failure
}

func numbers(set map[int32]bool) []int32 {
	found := []int32{}
	for number := range set {
		found = append(found, number)
	}
	return found
}

func (d *driver) openTransactional(ctx context.Context, c *call) (any, error) {
	client, err := c.client(
		kgo.TransactionalID(c.Transactional),
		kgo.TransactionTimeout(c.milliseconds(c.TimeoutMs)),
	)
	if err != nil {
		return nil, err
	}
	if _, _, err := client.ProducerID(ctx); err != nil {
		client.Close()
		return nil, err
	}
	d.producers[c.ID] = client
	return c.ID, nil
}

func (d *driver) transactional(ctx context.Context, c *call) (any, error) {
	client := d.producers[c.Producer]
	switch c.Does {
	case "begin":
		return nil, client.BeginTransaction()
	case "send":
		return send(ctx, client, c)
	case "send_offsets":
		return nil, sendOffsets(ctx, client, c)
	case "commit":
		return nil, client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		if err := client.AbortBufferedRecords(ctx); err != nil {
			return nil, err
		}
		return nil, client.EndTransaction(ctx, kgo.TryAbort)
	default:
		delete(d.producers, c.Producer)
		client.Close()
		return nil, nil
	}
}

// franz-go commits offsets with a transaction for members of its own (transform.go); for a group
// without members the two requests are made as it makes them.
func sendOffsets(ctx context.Context, client *kgo.Client, c *call) error {
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return err
	}
	transactionalID := client.OptValue(kgo.TransactionalID).(string)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = transactionalID, id, epoch
	add.Group = c.Group
	added, err := add.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return err
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch = transactionalID, id, epoch
	commit.Group = c.Group
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topics, err := kadm.NewClient(client).ListTopics(ctx, c.Topic)
	if err != nil {
		return err
	}
	topic.Topic, topic.TopicID = c.Topic, topics[c.Topic].ID
	for _, each := range c.Offsets {
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset = each.partition, each.offset
		topic.Partitions = append(topic.Partitions, partition)
	}
	commit.Topics = append(commit.Topics, topic)
	committed, err := commit.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, each := range committed.Topics {
		for _, partition := range each.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

type driver struct {
	members   map[int]*member
	producers map[int]*kgo.Client
	admin     *kadm.Client
}

func (d *driver) answer(c *call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait+5*time.Second)
	defer cancel()
	switch c.Op {
	case "version":
		return version(), nil
	case "produce":
		return produce(ctx, c)
	case "consume":
		return consume(ctx, c)
	case "member_open":
		return d.openMember(c)
	case "member_state":
		return d.members[c.Member].state()
	case "member_records":
		found := d.members[c.Member]
		found.mutex.Lock()
		defer found.mutex.Unlock()
		return append([]record{}, found.seen...), nil
	case "member_close":
		found := d.members[c.Member]
		delete(d.members, c.Member)
		return nil, found.close()
	case "transactional_open":
		return d.openTransactional(ctx, c)
	case "transactional":
		return d.transactional(ctx, c)
	}
	if d.admin == nil {
		client, err := c.client()
		if err != nil {
			return nil, err
		}
		d.admin = kadm.NewClient(client)
	}
	return administer(ctx, d.admin, c)
}

func version() string {
	built, _ := debug.ReadBuildInfo()
	for _, each := range built.Deps {
		if strings.HasSuffix(each.Path, "/franz-go") {
			return "franz-go " + each.Version
		}
	}
	return "franz-go"
}

// named gives Kafka's name for an error where it has one.
func named(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return reflect.TypeOf(err).String()
}

func main() {
	if len(os.Args) > 1 {
		if err := transform(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	d := &driver{members: map[int]*member{}, producers: map[int]*kgo.Client{}}
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c call
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		answer := map[string]any{"id": c.ID}
		if result, err := d.answer(&c); err != nil {
			answer["error"], answer["message"] = named(err), err.Error()
		} else {
			answer["result"] = result
		}
		if err := answers.Encode(answer); err != nil {
			panic(err)
		}
	}
}
