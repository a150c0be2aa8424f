package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// transform copies a topic to another one, partition by partition, as a static member of a group:
// what it has read, what it has written and its offsets are one transaction, until it is killed, or
// another one has its name, which is its transactional id as well. Any other error has it begin anew.
// Its arguments are the servers, both topics, the group and its name.
func transform(arguments []string) error {
	for {
		err := copyUntilError(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])
		for _, fenced := range []error{kerr.FencedInstanceID, kerr.ProducerFenced, kerr.InvalidProducerEpoch} {
			if errors.Is(err, fenced) {
				return err
			}
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(100 * time.Millisecond)
	}
}

func copyUntilError(servers, source, target, group, name string) error {
	secured, err := connecting()
	if err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(append(secured,
		kgo.SeedBrokers(servers),
		kgo.TransactionalID(name),
		kgo.TransactionTimeout(10*time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DefaultProduceTopic(target),
		kgo.ConsumerGroup(group),
		kgo.InstanceID(name),
		kgo.ConsumeTopics(source),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond),
	)...)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx := context.Background()
	for {
		fetched := session.PollRecords(ctx, 100)
		if err := fetched.Err0(); err != nil && !joinsAgain(err) {
			return err
		}
		if fetched.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		failed := kgo.AbortingFirstErrPromise(session.Client())
		fetched.EachRecord(func(each *kgo.Record) {
			copied := &kgo.Record{Partition: each.Partition, Value: each.Value}
			session.Produce(ctx, copied, failed.Promise())
		})
		problem := failed.Err()
		if _, err := session.End(ctx, kgo.TransactionEndTry(problem == nil)); err != nil {
			return errors.Join(problem, err)
		}
	}
}
