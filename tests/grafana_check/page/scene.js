// A dashboard's JSON as a scene, as Grafana loads one of the classic schema.
import {
  ConstantVariable, DataSourceVariable, EmbeddedScene, QueryVariable, SceneControlsSpacer, SceneDataLayerSet, SceneDataTransformer,
  SceneGridItem, SceneGridLayout, SceneGridRow, SceneQueryRunner, SceneTimePicker, SceneTimeRange, SceneVariableSet,
  TextBoxVariable, VariableValueSelectors, VizPanel, dataLayers,
} from '@grafana/scenes';

export function scene({ board, time, chosen, expanded }) {
  const layers = board.annotations.list.map((query) => new dataLayers.AnnotationsDataLayer({
    key: query.name, name: query.name, query: { ...query, enable: true }, isEnabled: query.enable || expanded,
  }));
  return new EmbeddedScene({
    $timeRange: new SceneTimeRange({ ...time, timeZone: 'utc' }),
    $variables: new SceneVariableSet({ variables: board.templating.list.map((one) => variable(one, chosen)) }),
    $data: new SceneDataLayerSet({ layers }),
    controls: [new VariableValueSelectors({}), new SceneControlsSpacer(), new SceneTimePicker({})],
    body: new SceneGridLayout({ isLazy: false, children: rows(board.panels) }),
  });
}

function variable(one, chosen) {
  const { name, label, hide, query } = one;
  const common = { name, label, hide };
  if (one.type === 'datasource') {
    return new DataSourceVariable({ ...common, pluginId: query, value: 'prom', text: 'Prometheus' });
  }
  if (one.type === 'constant' || one.type === 'textbox') {
    const Kind = one.type === 'constant' ? ConstantVariable : TextBoxVariable;
    return new Kind({ ...common, value: chosen[name] ?? one.current.value });
  }
  const picked = chosen[name] ? { text: [chosen[name].text ?? chosen[name]], value: [chosen[name].value ?? chosen[name]] } : one.current;
  return new QueryVariable({
    ...common, query, regex: one.regex, datasource: one.datasource, refresh: one.refresh, sort: one.sort,
    isMulti: one.multi, includeAll: one.includeAll, allValue: one.allValue, text: picked?.text ?? [], value: picked?.value ?? [],
  });
}

function rows(panels) {
  const children = [];
  for (const panel of panels) {
    const place = { x: panel.gridPos.x, y: panel.gridPos.y };
    if (panel.type === 'row') {
      const row = { key: `row-${panel.id}`, title: panel.title, isCollapsible: true, isCollapsed: panel.collapsed, ...place };
      children.push(new SceneGridRow({ ...row, children: panel.panels.map(item) }));
    } else if (children.at(-1) instanceof SceneGridRow && !children.at(-1).state.isCollapsed) {
      children.at(-1).setState({ children: [...children.at(-1).state.children, item(panel)] });
    } else {
      children.push(item(panel));
    }
  }
  return children;
}

function item(panel) {
  const { x, y, w, h } = panel.gridPos;
  const runner = new SceneQueryRunner({
    queries: panel.targets, datasource: panel.datasource, maxDataPoints: panel.maxDataPoints,
    maxDataPointsFromWidth: true, minInterval: panel.interval, dataLayerFilter: { panelId: panel.id },
  });
  const body = new VizPanel({
    key: `panel-${panel.id}`, title: panel.title, description: panel.description, pluginId: panel.type,
    options: structuredClone(panel.options), fieldConfig: structuredClone(panel.fieldConfig),
    $data: new SceneDataTransformer({ $data: runner, transformations: panel.transformations ?? [] }),
  });
  return new SceneGridItem({ x, y, width: w, height: h, body });
}
