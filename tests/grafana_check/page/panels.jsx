// Grafana's panels, put together from its own components: the plug-ins themselves are in no package.
import {
  FieldConfigProperty, FieldType, PanelPlugin, PluginType, VizOrientation, cacheFieldDisplayNames, getDisplayValueAlignmentFactors,
  getFieldDisplayName, getFieldDisplayValues, identityOverrideProcessor, standardFieldConfigEditorRegistry,
} from '@grafana/data';
import * as processors from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, VizLegend, VizRepeater, useTheme2 } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { useLayoutEffect } from 'react';

const STANDARD = {
  [FieldConfigProperty.Unit]: processors.unitOverrideProcessor,
  [FieldConfigProperty.Min]: processors.numberOverrideProcessor,
  [FieldConfigProperty.Max]: processors.numberOverrideProcessor,
  [FieldConfigProperty.FieldMinMax]: processors.booleanOverrideProcessor,
  [FieldConfigProperty.Decimals]: processors.numberOverrideProcessor,
  [FieldConfigProperty.DisplayName]: processors.displayNameOverrideProcessor,
  [FieldConfigProperty.NoValue]: processors.stringOverrideProcessor,
  [FieldConfigProperty.Thresholds]: processors.thresholdsOverrideProcessor,
  [FieldConfigProperty.Mappings]: processors.valueMappingsOverrideProcessor,
  [FieldConfigProperty.Links]: processors.dataLinksOverrideProcessor,
  [FieldConfigProperty.Color]: identityOverrideProcessor,
};

// What a field of each kind of panel can be told beyond the standard, and what that is by itself.
const CUSTOM = {
  timeseries: {
    drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none',
    showPoints: 'auto', pointSize: 5, spanNulls: false, insertNulls: false, lineStyle: undefined,
    stacking: { mode: 'none', group: 'A' }, axisPlacement: 'auto', axisLabel: '', axisColorMode: 'text',
    axisGridShow: true, axisCenteredZero: false, axisBorderShow: false, axisWidth: undefined,
    axisSoftMin: undefined, axisSoftMax: undefined, scaleDistribution: { type: 'linear' },
    hideFrom: { tooltip: false, viz: false, legend: false }, thresholdsStyle: { mode: 'off' },
  },
  table: {
    minWidth: undefined, width: undefined, align: 'auto', cellOptions: { type: 'auto' }, inspect: false,
    filterable: undefined, hidden: undefined, hideFrom: undefined, wrapText: undefined, wrapHeaderText: undefined,
    tooltip: undefined, footer: undefined,
  },
  stat: {},
  bargauge: {},
  'state-timeline': { lineWidth: 0, fillOpacity: 70, spanNulls: false, insertNulls: false, hideFrom: undefined },
};

export function registerStandard() {
  standardFieldConfigEditorRegistry.setInit(() => Object.entries(STANDARD).map(([id, process]) => ({
    id, path: id, name: id, editor: () => null, override: () => null, process, shouldApply: () => true,
  })));
}

export function plugins() {
  const parts = { timeseries: Lines, table: Rows, stat: Stats, bargauge: Bars, 'state-timeline': States };
  return new Map(Object.entries(parts).map(([id, component]) => [id, plugin(id, component)]));
}

function plugin(id, component) {
  const made = new PanelPlugin(component).useFieldConfig({
    useCustomConfig: (builder) => {
      for (const [path, defaultValue] of Object.entries(CUSTOM[id])) {
        builder.addCustomEditor({
          id: path, path, name: path, defaultValue, editor: () => null, override: () => null,
          process: identityOverrideProcessor, shouldApply: () => true,
        });
      }
    },
  });
  made.setDataSupport({ annotations: id === 'timeseries' });
  made.meta = { id, name: id, type: PluginType.panel, module: '', baseUrl: '', info: { version: '' }, sort: 1 };
  return made;
}

function Nothing({ fieldConfig, width, height }) {
  const style = { width, height, display: 'flex', alignItems: 'center', justifyContent: 'center' };
  return <div style={style} data-nothing>{fieldConfig.defaults.noValue ?? 'No data'}</div>;
}

const plotted = (frame) => frame.length > 0
  && [FieldType.time, FieldType.number].every((type) => frame.fields.some((field) => field.type === type));

function Lines(props) {
  const { data, width, height, timeRange, timeZone, options, replaceVariables } = props;
  const frames = data.series.filter(plotted);
  if (!frames.length) {
    return <Nothing {...props} />;
  }
  return (
    <TimeSeries frames={frames} structureRev={data.structureRev} timeRange={timeRange} timeZone={timeZone}
      width={width} height={height} legend={options.legend} options={options} replaceVariables={replaceVariables}>
      {(config) => <Marks config={config} annotations={data.annotations ?? []} title={props.title} />}
    </TimeSeries>
  );
}

// Annotations as Grafana marks them: a line where one begins and, with an end, a pale area.
function Marks({ config, annotations, title }) {
  const theme = useTheme2();
  useLayoutEffect(() => {
    config.addHook('draw', (plot) => {
      (window.plots ??= {})[title] = plot;
      for (const frame of annotations) {
        mark(plot, frame, theme);
      }
    });
  }, [config, annotations, theme, title]);
  return null;
}

function mark(plot, frame, theme) {
  const column = (name) => frame.fields.find((field) => field.name === name)?.values ?? [];
  const [times, ends, colours] = ['time', 'timeEnd', 'color'].map(column);
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + 4);
  ctx.clip();
  times.forEach((time, at) => {
    const colour = theme.visualization.getColorByName(colours[at] ?? 'red');
    const [x, end] = [time, ends[at] ?? time].map((when) => plot.valToPos(when, 'x', true));
    ctx.globalAlpha = 0.12;
    ctx.fillStyle = colour;
    ctx.fillRect(x, bbox.top, end - x, bbox.height);
    ctx.globalAlpha = 1;
    ctx.fillRect(x, bbox.top, 1, bbox.height);
    ctx.fillRect(x, bbox.top + bbox.height, Math.max(end - x, 4), 4);
  });
  ctx.restore();
}

function Rows(props) {
  const { data, width, height, options, fieldConfig, timeRange } = props;
  const [frame] = data.series;
  if (!frame?.fields.length || !frame.length) {
    return <Nothing {...props} />;
  }
  cacheFieldDisplayNames(data.series);
  return (
    <TableNG data={frame} width={width} height={height} noHeader={!options.showHeader} sortBy={options.sortBy}
      cellHeight={options.cellHeight} fieldConfig={fieldConfig} timeRange={timeRange} resizable
      enableVirtualization structureRev={data.structureRev} frozenColumns={options.frozenColumns?.left ?? 0} />
  );
}

function displayed({ data, fieldConfig, options, replaceVariables, timeZone }, theme) {
  return getFieldDisplayValues({
    fieldConfig, replaceVariables, theme, timeZone, data: data.series, reduceOptions: options.reduceOptions,
  });
}

function Stats(props) {
  const theme = useTheme2();
  const { data, width, height, options, renderCounter } = props;
  return (
    <VizRepeater source={data} width={width} height={height} renderCounter={renderCounter} itemSpacing={3} autoGrid
      orientation={options.orientation} getValues={() => displayed(props, theme)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, width: w, height: h, alignmentFactors, count }) => (
        <BigValue value={value.display} width={w} height={h} theme={theme} alignmentFactors={alignmentFactors}
          count={count} colorMode={options.colorMode} graphMode={options.graphMode}
          justifyMode={options.justifyMode} textMode={options.textMode} disableWideLayout={options.wideLayout === false}
          text={options.text} />
      )} />
  );
}

const BAR_SIZES = { minVizWidth: 8, minVizHeight: 16, maxVizHeight: 300 };

function Bars(props) {
  const theme = useTheme2();
  const { data, width, height, options, renderCounter } = props;
  // Sizes count only where they are set by hand.
  const sizes = { ...BAR_SIZES, ...(options.sizing === 'manual' ? options : {}) };
  return (
    <VizRepeater source={data} width={width} height={height} renderCounter={renderCounter} itemSpacing={10}
      minVizWidth={sizes.minVizWidth} minVizHeight={sizes.minVizHeight} maxVizHeight={sizes.maxVizHeight}
      orientation={options.orientation} getValues={() => displayed(props, theme)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, width: w, height: h, alignmentFactors, count, orientation }) => (
        <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          width={w} height={h} theme={theme} orientation={orientation} itemSpacing={10} lcdCellWidth={12}
          displayMode={options.displayMode} showUnfilled={options.showUnfilled} alignmentFactors={alignmentFactors}
          text={options.text} valueDisplayMode={options.valueMode} namePlacement={options.namePlacement}
          isOverflow={orientation === VizOrientation.Horizontal && count * (h + 10) > height} />
      )} />
  );
}

// In no package, so drawn here: a band for each series, its values as Grafana displays them.
function States(props) {
  const { data, width, height, timeRange } = props;
  const frames = data.series.filter(plotted);
  if (!frames.length) {
    return <Nothing {...props} />;
  }
  const [start, end] = [timeRange.from.valueOf(), timeRange.to.valueOf()];
  const legend = new Map();
  const bands = frames.map((frame) => band(frame, frames, legend));
  const high = Math.min((height - 30) / bands.length, 40);
  const items = [...legend].map(([label, color]) => ({ label, color, yAxis: 1 }));
  return (
    <div style={{ width, height, position: 'relative' }}>
      {bands.map(({ name, runs }, at) => (
        <div key={name} style={{ position: 'absolute', top: at * high, height: high, width, display: 'flex' }}>
          <span style={{ width: 150, overflow: 'hidden', whiteSpace: 'nowrap' }}>{name}</span>
          <div style={{ position: 'relative', flex: 1, overflow: 'hidden' }}>
            {runs.map((run) => (
              <div key={run.from} style={{
                position: 'absolute', left: `${100 * (run.from - start) / (end - start)}%`, height: high * 0.9,
                width: `${100 * (run.to - run.from) / (end - start)}%`, background: run.color, color: '#000',
                overflow: 'hidden', paddingLeft: 4, opacity: 0.85,
              }}>{run.text}</div>
            ))}
          </div>
        </div>
      ))}
      <div style={{ position: 'absolute', bottom: 0 }}><VizLegend items={items} placement="bottom" displayMode="list" /></div>
    </div>
  );
}

function band(frame, frames, legend) {
  const time = frame.fields.find((field) => field.type === FieldType.time);
  const field = frame.fields.find((one) => one.type === FieldType.number);
  const step = time.config.interval;
  const runs = [];
  field.values.forEach((value, at) => {
    const { text, color } = field.display(value);
    const [last, from] = [runs.at(-1), time.values[at]];
    if (last?.text === text && from - last.to < 1.5 * step) {
      last.to = from + step;
    } else {
      runs.push({ from, to: from + step, text, color });
    }
    legend.set(text, color);
  });
  return { name: getFieldDisplayName(field, frame, frames), runs };
}
