package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/sr"
)

// franz is franz-go's client of the registry, its Serde, producer and consumer.
type franz struct {
	client    *sr.Client
	bootstrap string
}

func newFranz(c *call) (client, error) {
	made, err := sr.NewClient(sr.URLs(c.Registry))
	return &franz{client: made, bootstrap: c.Bootstrap}, err
}

func (f *franz) version() string { return versionOf("github.com/twmb/franz-go/pkg/sr") }

// parameters are the query parameters of the call.
func (c *call) parameters() context.Context {
	given := []sr.Param{}
	for parameter, set := range map[*sr.Param]bool{
		&sr.Normalize: c.Normalize, &sr.ShowDeleted: c.Deleted, &sr.Force: c.Force,
	} {
		if set {
			given = append(given, *parameter)
		}
	}
	if c.Prefix != "" {
		given = append(given, sr.SubjectPrefix(c.Prefix))
	}
	if c.Op == "by_id" && c.Subject != "" {
		given = append(given, sr.Subject(c.Subject))
	}
	if c.Output != "" {
		given = append(given, sr.Format(c.Output))
	}
	ctx := context.Background()
	if c.Context != "" && c.Op != "delete_context" {
		ctx = sr.InContext(ctx, c.Context)
	}
	return sr.WithParams(ctx, given...)
}

func (f *franz) answer(c *call) (any, error) {
	var schema sr.Schema
	if len(c.Schema) > 0 {
		if err := json.Unmarshal(c.Schema, &schema); err != nil {
			return nil, err
		}
	}
	result, err := f.operation(c.parameters(), c, schema)
	var known *sr.ResponseError
	if errors.As(err, &known) {
		return nil, &problem{known.ErrorCode, known.Message}
	}
	return result, err
}

func (f *franz) operation(ctx context.Context, c *call, schema sr.Schema) (any, error) {
	cl := f.client
	switch c.Op {
	case "types":
		return cl.SupportedTypes(ctx)
	case "contexts":
		return cl.Contexts(ctx)
	case "delete_context":
		return nil, cl.DeleteContext(ctx, c.Context)
	case "subjects":
		return cl.Subjects(ctx)
	case "register":
		if c.SchemaID > 0 {
			return cl.CreateSchemaWithIDAndVersion(ctx, c.Subject, schema, c.SchemaID, c.number())
		}
		return cl.CreateSchema(ctx, c.Subject, schema)
	case "by_id":
		return cl.SchemaByID(ctx, c.SchemaID)
	case "text_by_id":
		return cl.SchemaTextByID(ctx, c.SchemaID)
	case "by_guid":
		return cl.SchemaByGUID(ctx, c.GUID)
	case "ids_by_guid":
		return cl.SchemaIDsByGUID(ctx, c.GUID)
	case "subjects_of_id":
		return cl.SubjectsByID(ctx, c.SchemaID)
	case "versions_of_id":
		found, err := cl.SchemaVersionsByID(ctx, c.SchemaID)
		made := [][]any{}
		for _, each := range found {
			made = append(made, []any{each.Subject, each.Version})
		}
		return made, err
	case "lookup":
		return cl.LookupSchema(ctx, c.Subject, schema)
	case "versions":
		return cl.SubjectVersions(ctx, c.Subject)
	case "version":
		return cl.SchemaByVersion(ctx, c.Subject, c.number())
	case "latest":
		return cl.SchemaByVersion(ctx, c.Subject, -1)
	case "text_of_version":
		return cl.SchemaTextByVersion(ctx, c.Subject, c.number())
	case "all_schemas":
		return cl.AllSchemas(ctx)
	case "schemas":
		return cl.Schemas(ctx, c.Subject)
	}
	return f.more(ctx, c, schema)
}

func (f *franz) more(ctx context.Context, c *call, schema sr.Schema) (any, error) {
	cl := f.client
	switch c.Op {
	case "referenced_by":
		found, err := cl.SchemaReferences(ctx, c.Subject, c.number())
		made := []int{}
		for _, each := range found {
			made = append(made, each.ID)
		}
		return made, err
	case "usages":
		return cl.SchemaUsagesByID(ctx, c.SchemaID)
	case "delete_version":
		return c.number(), cl.DeleteSchema(ctx, c.Subject, c.number(), sr.DeleteHow(c.Permanent))
	case "delete_subject":
		return cl.DeleteSubject(ctx, c.Subject, sr.DeleteHow(c.Permanent))
	case "compatible":
		found, err := cl.CheckCompatibility(ctx, c.Subject, c.number(), schema)
		return found.Is, err
	case "compatible_with_all":
		found, err := cl.CheckCompatibility(ctx, c.Subject, -2, schema)
		return found.Is, err
	case "explain":
		ctx = sr.WithParams(ctx, sr.Verbose)
		found, err := cl.CheckCompatibility(ctx, c.Subject, c.number(), schema)
		return found.Messages, err
	case "mode":
		found := cl.Mode(ctx, c.Subject)[0]
		return found.Mode, found.Err
	case "set_mode":
		var mode sr.Mode
		if err := mode.UnmarshalText([]byte(c.Mode)); err != nil {
			return nil, err
		}
		found := cl.SetMode(ctx, mode, c.Subject)[0]
		return found.Mode, found.Err
	case "delete_mode":
		found := cl.ResetMode(ctx, c.Subject)[0]
		return found.Mode, found.Err
	}
	return f.setting(ctx, c)
}

func (f *franz) setting(ctx context.Context, c *call) (any, error) {
	cl := f.client
	switch c.Op {
	case "compatibility":
		found := cl.Compatibility(ctx, c.Subject)[0]
		return found.Level, found.Err
	case "config":
		found := cl.Compatibility(ctx, c.Subject)[0]
		return found, found.Err
	case "delete_config":
		found := cl.ResetCompatibility(ctx, c.Subject)[0]
		return found.Level, found.Err
	case "set_compatibility", "set_config":
		var config sr.SetCompatibility
		text := c.Config
		if c.Level != "" {
			text = json.RawMessage(fmt.Sprintf(`{"compatibility": %q}`, c.Level))
		}
		if err := json.Unmarshal(text, &config); err != nil {
			return nil, err
		}
		found := cl.SetCompatibility(ctx, config, c.Subject)[0]
		return found.Level, found.Err
	}
	return nil, errors.New("unknown operation " + c.Op)
}
