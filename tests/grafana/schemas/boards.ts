// What a dashboard file may hold: Grafana's own types, put together as its panels are.
// `@grafana/schema` leaves a panel's options, its custom fields and its queries open.
import type * as bargauge from 'bargauge';
import type * as dashboard from 'dashboard';
import type * as stat from 'stat';
import type * as statetimeline from 'statetimeline';
import type * as table from 'table';
import type * as timeseries from 'timeseries';
import type { DataSourceRef } from '@grafana/schema';

// The Prometheus data source is a package of its own: packages/grafana-prometheus/src/types.ts
interface Query {
  datasource: DataSourceRef;
  editorMode: 'builder' | 'code';
  exemplar?: boolean;
  expr: string;
  format: 'heatmap' | 'table' | 'time_series';
  hide?: boolean;
  instant: boolean;
  interval?: string;
  legendFormat?: string;
  range: boolean;
  refId: string;
}

// What it draws annotations from: packages/grafana-prometheus/src/types.ts, PromAnnotation
interface Annotation extends Omit<dashboard.AnnotationQuery, 'target'> {
  target: { expr: string; interval?: string; refId: string };
  textFormat?: string;
  titleFormat?: string;
}

// Of a field, packages/grafana-data/src/types/dataLink.ts, and of a panel: the schema has dashboard
// links there, but these are what panels read, public/app/features/dashboard/state/PanelModel.ts
interface Link {
  oneClick?: boolean;
  targetBlank?: boolean;
  title: string;
  url: string;
}

interface Field<Custom> extends Omit<dashboard.FieldConfig, 'custom' | 'links'> {
  custom?: Custom;
  links?: Array<Link>;
}

interface PanelOf<Type extends string, Options, Custom>
  extends Omit<dashboard.Panel, 'fieldConfig' | 'links' | 'options' | 'targets' | 'type'> {
  fieldConfig: Omit<dashboard.FieldConfigSource, 'defaults'> & { defaults: Field<Custom> };
  links?: Array<Link>;
  options: Options;
  targets: Array<Query>;
  type: Type;
}

export type Board = Omit<dashboard.Dashboard, 'annotations' | 'panels'> & {
  annotations: { list: Array<Annotation> };
  panels: Array<
    | dashboard.RowPanel
    | PanelOf<'bargauge', bargauge.Options, Record<string, never>>
    | PanelOf<'stat', stat.Options, Record<string, never>>
    | PanelOf<'state-timeline', statetimeline.Options, statetimeline.FieldConfig>
    | PanelOf<'table', table.Options, table.FieldConfig>
    | PanelOf<'timeseries', timeseries.Options, timeseries.FieldConfig>
  >;
};
