package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// listed makes lists of what was told of partitions that were asked for.
func listed(c *call, found kadm.ListedOffsets, err error, make func(kadm.ListedOffset)) error {
	if err != nil {
		return err
	}
	if err := found.Error(); err != nil {
		return err
	}
	wanted := c.wanted()
	found.Each(func(each kadm.ListedOffset) {
		if wanted[each.Partition] {
			make(each)
		}
	})
	return nil
}

func bounds(ctx context.Context, admin *kadm.Client, c *call) (any, error) {
	first := map[int32]int64{}
	starts, err := admin.ListStartOffsets(ctx, c.Topic)
	err = listed(c, starts, err, func(each kadm.ListedOffset) { first[each.Partition] = each.Offset })
	if err != nil {
		return nil, err
	}
	found := [][3]int64{}
	ends, err := admin.ListEndOffsets(ctx, c.Topic)
	err = listed(c, ends, err, func(each kadm.ListedOffset) {
		found = append(found, [3]int64{int64(each.Partition), first[each.Partition], each.Offset})
	})
	return found, err
}

func committed(ctx context.Context, admin *kadm.Client, c *call) (any, error) {
	told, err := admin.FetchOffsetsForTopics(ctx, c.Group, c.Topic)
	if err != nil {
		return nil, err
	}
	if err := told.Error(); err != nil {
		return nil, err
	}
	found := [][3]any{}
	for part := range c.wanted() {
		if each, ok := told.Lookup(c.Topic, part); ok && each.At >= 0 {
			found = append(found, [3]any{part, each.At, each.Metadata})
		}
	}
	return found, nil
}

func describeGroup(ctx context.Context, admin *kadm.Client, c *call) (any, error) {
	told, err := admin.DescribeGroups(ctx, c.Group)
	if err != nil {
		return nil, err
	}
	if err := told.Error(); err != nil {
		return nil, err
	}
	return []any{told[c.Group].State, len(told[c.Group].Members)}, nil
}

func topicConfigs(ctx context.Context, admin *kadm.Client, c *call) (any, error) {
	told, err := admin.DescribeTopicConfigs(ctx, c.Topic)
	if err != nil {
		return nil, err
	}
	resource, err := told.On(c.Topic, nil)
	if err != nil {
		return nil, err
	}
	found := map[string]*string{}
	for _, each := range resource.Configs {
		found[each.Key] = each.Value
	}
	return found, resource.Err
}

func logDirs(ctx context.Context, admin *kadm.Client, c *call) (any, error) {
	told, err := admin.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return nil, err
	}
	found := [][2]int64{}
	told.Each(func(directory kadm.DescribedLogDir) {
		directory.Topics.Each(func(each kadm.DescribedLogDirPartition) {
			if each.Topic == c.Topic {
				found = append(found, [2]int64{int64(each.Partition), each.Size})
			}
		})
	})
	return found, nil
}

func create(ctx context.Context, admin *kadm.Client, c *call) error {
	var count int32
	if _, err := fmt.Sscan(string(c.Partitions), &count); err != nil {
		return err
	}
	_, err := admin.CreateTopic(ctx, count, -1, c.Configs, c.Topic)
	return err
}

func administer(ctx context.Context, admin *kadm.Client, c *call) (any, error) {
	switch c.Op {
	case "commit":
		return nil, admin.CommitAllOffsets(ctx, c.Group, c.places(c.Offsets))
	case "committed":
		return committed(ctx, admin, c)
	case "offsets_at":
		found := [][2]int64{}
		told, err := admin.ListOffsetsAfterMilli(ctx, c.Timestamp, c.Topic)
		err = listed(c, told, err, func(each kadm.ListedOffset) {
			found = append(found, [2]int64{int64(each.Partition), each.Offset})
		})
		return found, err
	case "bounds":
		return bounds(ctx, admin, c)
	case "create_topic":
		return nil, create(ctx, admin, c)
	case "delete_topic":
		_, err := admin.DeleteTopic(ctx, c.Topic)
		return nil, err
	case "topics":
		found := map[string]int{}
		told, err := admin.ListTopics(kadm.WithAuthorizedOps(ctx)) // what it knows of just before is not asked for again
		for name, each := range told {
			found[name] = len(each.Partitions)
		}
		return found, err
	case "create_partitions":
		told, err := admin.UpdatePartitions(ctx, c.Total, c.Topic)
		if err == nil {
			err = told.Error()
		}
		return nil, err
	case "configs":
		return topicConfigs(ctx, admin, c)
	case "alter_config":
		set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: c.Key, Value: &c.Value}}
		told, err := admin.AlterTopicConfigs(ctx, set, c.Topic)
		if err == nil {
			_, err = told.On(c.Topic, func(each *kadm.AlterConfigsResponse) error { return each.Err })
		}
		return nil, err
	case "delete_records":
		told, err := admin.DeleteRecords(ctx, c.places(c.Offsets))
		if err == nil {
			err = told.Error()
		}
		return nil, err
	case "groups":
		told, err := admin.ListGroups(ctx)
		return told.Groups(), err
	case "describe_group":
		return describeGroup(ctx, admin, c)
	case "delete_group":
		_, err := admin.DeleteGroup(ctx, c.Group)
		return nil, err
	case "cluster":
		told, err := admin.BrokerMetadata(ctx)
		return []any{told.Cluster, len(told.Brokers)}, err
	case "log_dirs":
		return logDirs(ctx, admin, c)
	case "config_topics":
		names := []string{}
		told, err := admin.ListConfigResources(ctx, kmsg.ConfigResourceTypeTopic)
		for _, each := range told.Resources {
			names = append(names, each.Name)
		}
		return names, err
	}
	return nil, fmt.Errorf("unknown operation %s", c.Op)
}
